"""Places the operators of a backbone according to the package's list (§3.1.2)."""

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
from split_infer_ros.split.torch_model import TorchModel


def placed_backbone(model: TorchModel, split_point: str, devices: Mapping[Tag, Device]) -> fx.GraphModule:
    """Returns the partition before a split point. The package's list of operators decides its placement.

    Args:
        model: the model. It must compute in float32.
        split_point: the split point's name.
        devices: the devices that ``GPU`` and ``CPU`` stand for.
    """
    part = backbone_of(model.whole(), model.split_point(split_point))
    return apply_plan(part, _plan(part, model), devices)


def has_host_operators(model: SplitModel) -> bool:
    """Returns whether the list makes a plan with copies between the processors.

    Always False for a model not of torch.
    """
    if not isinstance(model, TorchModel):
        return False
    part = backbone_of(model.graph, model.split_point("output"))
    return bool(_plan(part, model).copies)


def _plan(part: fx.GraphModule, model: TorchModel) -> PlacementPlan:
    listed = OperatorList.read()

    def rule(operator: Operator) -> Tag | None:
        return Tag.GPU if operator.kind in (INPUT, OUTPUT) else listed(operator)

    return make_plan(read_operators(part, model.entry.image_shape), rule)
