"""Makes the backbone that a pipeline runs. Some operators of a backbone on a GPU may run on the CPU.

This is paper 004, §3.1.2.
"""

from __future__ import annotations

from split_infer_ros.operator_placement.plan import Tag
from split_infer_ros.runtime.device import CPU
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_cache import Partition
from split_infer_ros.vision_ops.implementations import ImplementationChoice


def make_backbone(model: SplitModel, split_point: str) -> Partition:
    """Returns the partition before a split point. Some of its operators run on the CPU if the execution config says so.

    Operators are moved only for a torch model on a GPU. For other models, all operators run on the model's device. The
    features are on the model's device in every case.
    """
    falls_back = model.execution_config.operators is ImplementationChoice.FALLBACK
    if not falls_back or model.device.type == "cpu":
        return model.backbone(split_point)
    from split_infer_ros.operator_placement.listed_placement import placed_backbone  # only here: both import torch
    from split_infer_ros.split.torch_network import TorchNetwork

    if not isinstance(model.network, TorchNetwork):
        return model.backbone(split_point)
    return placed_backbone(model.network, split_point, {Tag.GPU: model.device, Tag.CPU: CPU})
