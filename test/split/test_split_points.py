from __future__ import annotations

import json
from functools import cache

import pytest
import torch
from partitions import split
from torch import Tensor, nn
from torchvision import models as zoo

from split_infer_ros.buffers.host_arrays import FLOAT16, FLOAT32, DType, bfloat16, dtype_of
from split_infer_ros.errors import UnknownSplitPointError
from split_infer_ros.split.graph import trace
from split_infer_ros.split.split_points import (
    INPUT,
    OUTPUT,
    SplitPoint,
    choose_split_point,
    describe,
    parse_split_points,
    write_split_points,
)
from split_infer_ros.split.traced_split_points import find_split_points, live_values


@cache
def split_points_of(name: str) -> tuple[SplitPoint, ...]:
    return find_split_points(trace(getattr(zoo, name)()), (3, 224, 224))


def test_split_points_of_mobilenet_v2() -> None:
    split_points = split_points_of("mobilenet_v2")
    assert [split_point.name for split_point in split_points] == [
        INPUT,
        *(f"features.{number}" for number in range(19)),
        "classifier.0",
        OUTPUT,
    ]
    assert choose_split_point(split_points, "features", "mobilenet_v2").name == "features.18"
    assert choose_split_point(split_points, "features.16", "mobilenet_v2").bytes_per_image == 31_360


def test_split_points_of_resnet18() -> None:
    split_points = split_points_of("resnet18")
    blocks = [f"layer{layer}.{block}" for layer in range(1, 5) for block in range(2)]
    assert [split_point.name for split_point in split_points] == [
        INPUT,
        "relu",
        "maxpool",
        *blocks,
        "avgpool",
        "flatten",
        OUTPUT,
    ]
    for layer in range(1, 5):
        assert choose_split_point(split_points, f"layer{layer}", "resnet18").name == f"layer{layer}.1"
    assert choose_split_point(split_points, "layer4", "resnet18").bytes_per_image == 100_352


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])
def test_split_points_are_in_order_and_names_are_unique(name: str) -> None:
    split_points = split_points_of(name)
    positions = [split_point.position for split_point in split_points]
    assert positions == sorted(set(positions))
    names = [name for split_point in split_points for name in (split_point.name, *split_point.aliases)]
    assert len(names) == len(set(names))
    for split_point in split_points:
        assert choose_split_point(split_points, split_point.name, name) is split_point


@pytest.mark.parametrize("name", ["mobilenet_v2", "resnet18"])
def test_specs_describe_what_crosses(name: str) -> None:
    split_points = split_points_of(name)
    assert [spec.shape for spec in split_points[0].tensors] == [(3, 224, 224)]
    assert [spec.shape for spec in split_points[-1].tensors] == [(1000,)]
    for split_point in split_points:
        for spec in split_point.tensors:
            assert spec.dtype == FLOAT32


def test_an_unknown_split_point_error_lists_the_others() -> None:
    split_points = split_points_of("mobilenet_v2")
    with pytest.raises(UnknownSplitPointError) as refusal:
        choose_split_point(split_points, "feature.16", "mobilenet_v2")
    sentence = str(refusal.value)
    assert "'feature.16'" in sentence
    assert "Did you mean 'features.16'?" in sentence
    assert all(split_point.name in sentence for split_point in split_points)
    with pytest.raises(UnknownSplitPointError) as refusal:
        choose_split_point(split_points, "", "mobilenet_v2")
    assert "Did you mean" not in str(refusal.value)


def test_the_table_has_a_line_for_each_split_point() -> None:
    split_points = split_points_of("mobilenet_v2")
    lines = describe(split_points).splitlines()
    assert len(lines) == 1 + len(split_points)
    assert any("features.16" in line and "31,360" in line and "(160, 7, 7)" in line for line in lines)


class Fork(nn.Module):
    """A model with two branches, a constant, and a shape that is read between them."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1))
        self.right = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Conv2d(2, 4, 3, padding=1))
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.end = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        left = self.left(x) * self.scale
        right = self.right(x)
        together = (left + right) * self.scale
        flat = together.view(together.size(0), 4, -1).mean(2)
        return self.end(flat), together


def test_all_live_values_cross() -> None:
    split_points = {split_point.name: split_point for split_point in find_split_points(trace(Fork()), (3, 6, 5))}
    shapes = {name: [spec.shape for spec in split_point.tensors] for name, split_point in split_points.items()}
    assert shapes["input"] == [(3, 6, 5)]
    assert shapes["left.0"] == [(3, 6, 5), (4, 6, 5)]  # the image is still needed on the right
    assert shapes["right.0"] == [(4, 6, 5), (2, 6, 5)]
    assert shapes["right.1"] == [(4, 6, 5), (4, 6, 5)]
    assert shapes["output"] == [(4, 6, 5), (5,)]  # in the order in which they are computed
    assert split_points["right.0"].bytes_per_image == 4 * 30 * (4 + 2)


def test_constants_do_not_cross() -> None:
    graph = trace(Fork())
    nodes = list(graph.graph.nodes)
    assert any(node.op == "get_attr" for node in nodes)
    for position in range(1, len(nodes)):
        assert all(node.op != "get_attr" for node in live_values(nodes, position))


class Batchless(nn.Module):
    """A value whose first dimension is not the batch is alive throughout the middle."""

    def __init__(self, reduced: tuple[int, ...]) -> None:
        super().__init__()
        self.reduced = reduced
        self.first = nn.Conv2d(3, 4, 1)
        self.middle = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        level = x.mean(self.reduced)
        return self.middle(x) * level


@pytest.mark.parametrize("reduced", [(0,), (0, 1, 2, 3)])
def test_no_split_point_where_a_value_lacks_the_batch(reduced: tuple[int, ...]) -> None:
    names = [split_point.name for split_point in find_split_points(trace(Batchless(reduced)), (3, 4, 4))]
    assert "middle" not in names
    assert names == ["input", "first", "output"]


class Careful(nn.Module):
    """Computes boxes in float32, in whatever precision the rest runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.second = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.first(x)
        boxes = x.float() * 1000.0
        x = self.second(boxes.to(x.dtype) * 0.001)
        return x, boxes + x, boxes.flatten(1).argmax(1, keepdim=True)


def test_values_cast_to_float32_stay_so_in_any_precision() -> None:
    graph = trace(Careful())
    split_points = find_split_points(graph, (3, 4, 4))
    assert [split_point.name for split_point in split_points] == ["input", "first", "mul", "second", "output"]
    graph.to(torch.bfloat16)
    for split_point in split_points:
        features = split(graph, split_point).backbone(torch.rand(2, 3, 4, 4, dtype=torch.bfloat16))
        assert [spec.dtype for spec in split_point.in_precision(bfloat16()).tensors] == list(map(dtype_of, features))
    assert [spec.dtype for spec in split_points[-1].in_precision(bfloat16()).tensors].count(FLOAT32) == 1


class Narrowed(nn.Module):
    """Computes in float32 for a while, and then in half precision again."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 1)
        self.second = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.second((self.first(x).float() * 2.0).half()).relu()


def test_values_cast_to_half_stay_so_in_every_precision() -> None:
    *_, output = find_split_points(trace(Narrowed()), (3, 4, 4))
    for dtype in (FLOAT32, FLOAT16, bfloat16()):
        assert [spec.dtype for spec in output.in_precision(dtype).tensors] == [FLOAT16]


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, bfloat16()])
def test_split_points_are_read_as_they_were_written(dtype: DType) -> None:
    split_points = tuple(point.in_precision(dtype) for point in split_points_of("resnet18"))
    assert parse_split_points(json.loads(json.dumps(write_split_points(split_points)))) == split_points
