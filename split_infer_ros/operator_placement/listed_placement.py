"""Places the operators of a backbone according to the package's list (paper 004, §3.1.2)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import fx

from split_infer_ros.operator_placement.operator_graph import read_operators
from split_infer_ros.operator_placement.operator_list import OperatorList
from split_infer_ros.operator_placement.placed_graph import apply_plan
from split_infer_ros.operator_placement.plan import INPUT, OUTPUT, Operator, PlacementPlan, Tag, make_plan
from split_infer_ros.runtime.device import Device
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of
from split_infer_ros.split.torch_network import TorchNetwork


def placed_backbone(network: TorchNetwork, split_point: str, devices: Mapping[Tag, Device]) -> fx.GraphModule:
    """Returns the partition before a split point, with its operators placed on two processors.

    The package's list says which operator runs on which processor. Copies between the processors are part of the
    result.

    Args:
        network: the network of a model that computes in float32.
        split_point: the split point's name.
        devices: the device of each of ``Tag.GPU`` and ``Tag.CPU``.
    """
    part = backbone_of(network.graph.whole(), network.split_point(split_point))
    return apply_plan(part, _plan(part, network), devices)


def has_host_operators(model: SplitModel) -> bool:
    """Returns whether a plan for a model's network, made by the package's list, has copies between GPU and CPU.

    Always False for a model that is not a torch model.
    """
    network = model.network
    if not isinstance(network, TorchNetwork):
        return False
    part = backbone_of(network.graph.module, network.split_point("output"))
    return bool(_plan(part, network).copies)


def _plan(part: fx.GraphModule, network: TorchNetwork) -> PlacementPlan:
    listed = OperatorList.read()

    def rule(operator: Operator) -> Tag | None:
        return Tag.GPU if operator.kind in (INPUT, OUTPUT) else listed(operator)

    return make_plan(read_operators(part, network.entry.image_shape), rule)
