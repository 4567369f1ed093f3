"""Heads that torch computes in 16 bits take and give float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partition_maker import ConvertedPart
from split_infer_ros.split.torch_network import TorchNetwork

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
SIDE = 8
UNIT = 2.0**-8  # by which rounding to 8 bits changes a value at most, as a share of the value


class Doubling(nn.Module):
    """Records the dtypes that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[torch.dtype] = []

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.given = [tensor.dtype for tensor in tensors]
        return tuple(2 * tensor for tensor in tensors)


def test_values_of_16_bits_pass_through_float32_unchanged() -> None:
    part = Doubling()
    features, boxes, index = torch.randn(2, 3).bfloat16(), torch.randn(2, 4), torch.tensor([[1], [2]])
    dtypes = (torch.bfloat16, torch.float32, torch.int64)
    found = ConvertedPart(part, dtypes)(features.float(), boxes, index)
    assert part.given == list(dtypes)
    assert [tensor.dtype for tensor in found] == [torch.float32, torch.float32, torch.int64]
    for one, other in zip(found, (features, boxes, index), strict=True):
        assert torch.equal(one, 2 * other.to(one.dtype))  # doubling and widening are exact


def test_a_head_in_bf16_rounds_as_bf16_does() -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 6, 1)).eval()
    entry = ModelEntry(
        name="two",
        summary="",
        build=nn.Identity,
        weights=None,
        preprocess=Preprocess(SIDE, SIDE),
        labels=("a", "b"),
        default_split_point=None,
        decode=classify(SIDE, SIDE),
    )
    last = net[1]
    assert isinstance(last, nn.Conv2d)
    assert last.bias is not None
    own = SplitModel(TorchNetwork(entry, net))
    low = own.placed(CPU, ExecutionConfig(precision=Precision.BF16))
    assert low.head_config.precision is Precision.BF16
    middle = own.split_points[1].name
    with torch.inference_mode():
        (features,) = own.backbone(middle)(torch.randn(2, 3, SIDE, SIDE))
        (expected,), (found,) = own.head(middle)(features), low.head(middle)(features)
        sizes = conv2d(features.abs(), last.weight.abs(), last.bias.abs())
    assert found.dtype == torch.float32
    # inputs, weights and the result are rounded; a tenth more covers products of roundings
    assert ((found - expected).abs() <= 1.1 * 3 * UNIT * sizes).all()
    assert (found - expected).abs().max() > 1e-4 * expected.abs().max(), "float32 would be nearer"
