"""Makes the backbone that a pipeline runs. If it is on a GPU, some operators may run on the CPU (§3.1.2)."""

from __future__ import annotations

from split_infer_ros.operator_placement.plan import Tag
from split_infer_ros.runtime.device import CPU
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.vision_ops.implementations import ImplementationChoice


def make_backbone(model: SplitModel, split_point: str) -> Partition:
    """Returns the partition before a split point.

    If the model's execution config says so, some operators run on the CPU.

    This needs a torch model on a GPU; for other models, all operators run on the model's device. Features end on the
    GPU.
    """
    falls_back = model.execution_config.operators is ImplementationChoice.FALLBACK
    if not falls_back or model.device.type == "cpu":
        return model.backbone(split_point)
    from split_infer_ros.operator_placement.listed_placement import placed_backbone  # only here: both import torch
    from split_infer_ros.split.torch_network import TorchNetwork

    if not isinstance(model.network, TorchNetwork):
        return model.backbone(split_point)
    return placed_backbone(model.network, split_point, {Tag.GPU: model.device, Tag.CPU: CPU})
