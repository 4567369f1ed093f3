from __future__ import annotations

import pytest
import torch
from comparisons import rounding
from partitions import split, through_a_slot
from photographs import LEAST_VARIATION, least_variation, photograph_batch
from torch import Tensor, nn

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.export import copy_to_device, export, tidy
from split_infer_ros.split.graph import trace
from split_infer_ros.split.traced_split_points import find_split_points

SIDE = 24
UNTRACED = TypeError("not tried")


class Patches(nn.Module):
    """A model that torch.fx cannot trace, since it branches on a shape. It uses its batch size and makes constants."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Sequential(nn.Conv2d(3, 8, 4, stride=4, bias=False), nn.BatchNorm2d(8))
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mix = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[2] % 4:
            raise ValueError("no multiple of 4")
        x = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(images.shape[0], -1, -1), x], 1)
        x = x + torch.arange(x.shape[1], device=x.device)[:, None] / 100
        for mix in self.mix:
            x = x + mix(x).relu().reshape(images.shape[0], -1, 8)
        return self.head(x[:, 0] + x.mean(1))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def patches() -> tuple[nn.Module, Tensor]:
    images = photograph_batch(SIDE, SIDE)
    model = randomise(Patches(), images)
    with torch.inference_mode():
        assert least_variation(model(images)) > LEAST_VARIATION
    return model, images


def test_what_fx_cannot_trace_is_exported_and_split(patches: tuple[nn.Module, Tensor]) -> None:
    model, images = patches
    graph = trace(model, (3, SIDE, SIDE))
    split_points = find_split_points(graph, (3, SIDE, SIDE))
    names = [split_point.name for split_point in split_points]
    assert names[0] == "input"
    assert names[-1] == "output"
    assert len(names) > 5
    with torch.inference_mode():
        for count in (1, 3, 7):
            some = images[:count].contiguous(memory_format=torch.channels_last)
            (expected,) = graph(some)
            assert rounding(expected, model(some)) <= 1e-5  # the exported graph may use other operations
            for split_point in split_points:
                partitions = split(graph, split_point)
                found = through_a_slot(split_point, partitions.backbone, partitions.head, some)
                assert torch.equal(found[0], expected), split_point.name


def test_batch_sizes_do_not_cross(patches: tuple[nn.Module, Tensor]) -> None:
    """Both ends of the model need the batch size. It is read again, so that split points between them remain."""
    graph = export(patches[0], (3, SIDE, SIDE), UNTRACED)
    for split_point in find_split_points(graph, (3, SIDE, SIDE)):
        assert all(spec.dtype == FLOAT32 for spec in split_point.tensors)
    assert len(find_split_points(graph, (3, SIDE, SIDE))) > 4


def test_a_copy_on_a_device_makes_its_constants_there(patches: tuple[nn.Module, Tensor]) -> None:
    graph = export(patches[0], (3, SIDE, SIDE), UNTRACED)
    moved = copy_to_device(graph, torch.device("meta"), torch.bfloat16)
    outputs = moved(torch.empty((2, 3, SIDE, SIDE), dtype=torch.bfloat16, device="meta"))
    (output,) = outputs if isinstance(outputs, tuple) else (outputs,)
    assert output.device.type == "meta"
    assert {parameter.device.type for parameter in graph.parameters()} == {"cpu"}


def test_a_traced_graph_stays_as_it_is() -> None:
    graph = torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()))
    before = str(graph.graph)
    assert str(tidy(graph).graph) == before


class Counting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), -1)


def test_a_refusal_gives_both_reasons() -> None:
    with pytest.raises(ConfigurationError, match=r"Counting cannot be traced.*torch.export: .*constant") as refusal:
        export(Counting(), (3, 4, 4), UNTRACED)
    assert "TORCH_LOGS" not in str(refusal.value)
