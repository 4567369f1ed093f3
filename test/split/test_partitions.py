from __future__ import annotations

import copy
from functools import cache

import torch
from comparisons import rounding
from hypothesis import given, settings
from hypothesis import strategies as st
from partitions import split, through_a_slot
from photographs import LEAST_VARIATION, least_variation, photograph_batch
from torch import Tensor, fx, nn

from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.graph import prepare, trace
from split_infer_ros.split.traced_split_points import find_split_points


class Tiny(nn.Module):
    """A small model with skip connections, arithmetic in place, a constant and two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6(inplace=True)) for _ in range(3)
        )
        self.scale = nn.Parameter(torch.tensor([0.5]))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(images)
        for block in self.blocks:
            skipped = x
            x = block(x)
            x += skipped
            x = x * self.scale
        return self.head(x.mean((2, 3))), x


@cache
def tiny() -> tuple[nn.Module, Tensor]:
    images = photograph_batch(20, 24)
    return randomise(Tiny(), images), images


def as_tuple(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def check_every_split_point(
    graph: fx.GraphModule, images: Tensor, expected: tuple[Tensor, ...], tolerance: float
) -> int:
    split_points = find_split_points(graph, tuple(images.shape[1:]))  # type: ignore[arg-type]
    for split_point in split_points:
        partitions = split(graph, split_point)
        outputs = through_a_slot(split_point, partitions.backbone, partitions.head, images)
        assert len(outputs) == len(expected)
        for found, whole in zip(outputs, expected, strict=True):
            if tolerance:
                assert rounding(found, whole) <= tolerance, split_point.name
            else:
                assert torch.equal(found, whole), split_point.name
    return len(split_points)


def test_a_model_with_two_outputs_is_split_everywhere() -> None:
    model, images = tiny()
    with torch.inference_mode():
        expected = model(images.clone())
        assert least_variation(expected[0]) > LEAST_VARIATION
        assert check_every_split_point(trace(model), images, expected, tolerance=0.0) > 5
        assert check_every_split_point(prepare(copy.deepcopy(model)), images, expected, tolerance=1e-4) > 5  # folded


@settings(max_examples=20)
@given(batch=st.integers(1, 5), height=st.integers(8, 33), width=st.integers(8, 33), seed=st.integers(0, 1000))
def test_partitions_take_any_input_size(batch: int, height: int, width: int, seed: int) -> None:
    model, _ = tiny()
    images = torch.randn((batch, 3, height, width), generator=torch.Generator().manual_seed(seed))
    images = images.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        check_every_split_point(trace(model), images, as_tuple(model(images.clone())), tolerance=0.0)


def test_one_partition_is_empty_at_either_end() -> None:
    model, images = tiny()
    graph = trace(model)
    split_points = find_split_points(graph, (3, 20, 24))
    first, last = split(graph, split_points[0]), split(graph, split_points[-1])
    with torch.inference_mode():
        assert first.backbone(images)[0] is images
        features = tuple(torch.randn(1, *spec.shape) for spec in split_points[-1].tensors)
        assert {id(output) for output in last.head(*features)} == {id(feature) for feature in features}


def test_partitions_share_parameters_and_own_what_they_use() -> None:
    model, _ = tiny()
    graph = trace(model)
    split_point = next(
        split_point for split_point in find_split_points(graph, (3, 20, 24)) if split_point.name.startswith("blocks.1")
    )
    partitions = split(graph, split_point)
    whole = {id(parameter) for parameter in model.parameters()}
    backbone = {id(parameter) for parameter in partitions.backbone.parameters()}
    head = {id(parameter) for parameter in partitions.head.parameters()}
    assert backbone | head == whole
    assert backbone & head <= {id(model.scale)}
    assert "head.weight" not in dict(partitions.backbone.named_parameters())
    assert "head.weight" in dict(partitions.head.named_parameters())
