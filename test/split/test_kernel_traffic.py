"""Kernels of a network whose bytes are easy to count."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, fx, nn

from split_infer_ros.memory_cost.traffic import KernelTraffic
from split_infer_ros.split.kernel_traffic import kernels_of

SHAPE = (3, 8, 8)
IMAGES, MAPS, CONVOLUTION, LINEAR = 4 * 3 * 8 * 8, 4 * 5 * 8 * 8, 4 * (5 * 3 + 5), 4 * (320 * 7 + 7)


class Net(nn.Module):
    """A convolution, an activation in place, a view, a linear layer, and a sum with what it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 5, 1)
        self.relu = nn.ReLU(inplace=True)
        self.linear = nn.Linear(320, 7)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        maps = self.relu(self.convolution(images))
        return self.linear(torch.flatten(maps, 1)), maps + maps.mean()


@pytest.fixture(scope="module")
def net() -> fx.GraphModule:
    return fx.symbolic_trace(Net())


@pytest.mark.parametrize("count", [1, 2])
def test_kernels_and_their_bytes_for_one_image(net: fx.GraphModule, count: int) -> None:
    """Exact: they are shapes times sizes. The mean of all is 4 bytes of one image, and 2 of each of two."""
    convolution, relu, linear, mean, plus = kernels_of(net, SHAPE, item_bytes=4, count=count)
    assert convolution == KernelTraffic(IMAGES, MAPS, weight_bytes=CONVOLUTION, fresh_bytes=IMAGES)
    assert relu == KernelTraffic(0, MAPS, fresh_bytes=MAPS)
    assert linear == KernelTraffic(MAPS, 4 * 7, weight_bytes=LINEAR, fresh_bytes=MAPS)
    assert mean == KernelTraffic(MAPS, 4 // count)
    assert plus == KernelTraffic(MAPS + 4 // count, MAPS, fresh_bytes=4 // count)


def test_half_precision_halves_the_bytes(net: fx.GraphModule) -> None:
    single, half = (kernels_of(net, SHAPE, item_bytes=item_bytes) for item_bytes in (4, 2))
    assert [2 * each.weight_bytes for each in half] == [each.weight_bytes for each in single]
    assert [2 * each.output_bytes for each in half] == [each.output_bytes for each in single]


def test_nothing_is_computed(net: fx.GraphModule) -> None:
    """A thousand million images would take a terabyte."""
    assert len(kernels_of(net, SHAPE, item_bytes=4, count=10**9)) == 5


class Choosing(nn.Module):
    """Selects values, so that the shape of its result depends on them."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        return (torch.nonzero(images) + 1,)


def test_nodes_are_counted_if_a_shape_depends_on_values() -> None:
    assert kernels_of(fx.symbolic_trace(Choosing()), SHAPE, item_bytes=4) == (KernelTraffic(), KernelTraffic())


def test_partition_without_operations_has_no_kernels() -> None:
    graph = fx.Graph()
    graph.output((graph.placeholder("images"),))
    assert kernels_of(fx.GraphModule(nn.Module(), graph), SHAPE, item_bytes=4) == ()
