"""Weights that were given back: they come again where they are needed, and whoever has them keeps them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from _hollow_model import hollow_model
from comparing import rounding
from odd_model import TILE_MB, House, Odd
from torch import nn

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.errors import WeightsError
from split_infer_ros.split.graph import state_of
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.unpack import unpack

TWICE = 2  # then weights are packed, which other calls may round otherwise


@pytest.fixture
def model(house: House) -> SplitModel:
    return SplitModel(house.model.entry, Odd().eval(), torch.device("cpu"))


@pytest.fixture
def path(model: SplitModel, tmp_path: Path) -> Path:
    pack_model(model, tmp_path / "odd.weights", 1, tile_mb=TILE_MB)
    return tmp_path / "odd.weights"


def test_released_weights_come_back_where_a_half_needs_them(house: House, model: SplitModel, path: Path) -> None:
    with torch.inference_mode():
        expected = model.head("default")(*model.backbone("default")(house.images[:1]))
    names = state_of(model.graph).keys()
    asked: list[str] = []

    def fetch(wanted: Any) -> Any:
        asked.extend(wanted)
        return unpack(model, path, 1, wanted)

    model.release(names, fetch)
    assert sum(tensor.untyped_storage().nbytes() for tensor in state_of(model.graph).values()) < 2000
    with torch.inference_mode():
        head = model.head("default")
        assert asked
        assert set(asked) < set(names), "only what it needs"
        found = head(*model.backbone("default")(house.images[:1]))
    assert torch.equal(found[0], expected[0])  # the first call of two partitions with the same weights
    assert sorted(asked) == sorted(names)


def test_a_model_without_its_weights_is_packed_as_one_with_them(model: SplitModel, path: Path) -> None:
    model.release(state_of(model.graph).keys(), lambda wanted: unpack(model, path, 1, wanted))
    again = path.with_name("again.weights")
    pack_model(model.placed(model.device, model.dtype), again, 1, tile_mb=TILE_MB)
    assert again.read_bytes() == path.read_bytes()


def test_what_never_had_weights_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"shapes has no weights to be packed: 'stem\..*' was never loaded"):
        pack_model(hollow_model("shapes"), tmp_path / "w", 1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("convolutions", [Convolutions.PACKED, Convolutions.CONTIGUOUS])
def test_a_half_that_is_in_use_keeps_its_weights(
    house: House, model: SplitModel, path: Path, convolutions: Convolutions
) -> None:
    other = model.placed(model.device, model.dtype, ExecutionConfig(convolutions=convolutions))
    images = house.images[:1]
    with torch.inference_mode():
        backbone, head = other.backbone("default"), other.head("default")
        for _ in range(TWICE):
            (expected,) = head(*backbone(images))
        model.release(state_of(model.graph).keys(), lambda wanted: unpack(model, path, 1, wanted))
        assert torch.equal(head(*backbone(images))[0], expected)  # the same half once more


class Nested(nn.Module):
    """torch's own layer of layers, which is called as one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 4, stride=4)
        self.layers = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.last = nn.Linear(8, 500)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layers(self.first(images).flatten(2).transpose(1, 2)).mean(1))
        return found


def test_a_half_keeps_weights_of_layers_within_layers(house: House) -> None:
    model = SplitModel(replace(house.model.entry, default_split_point=None), Nested().eval(), torch.device("cpu"))
    with torch.inference_mode():
        partition = model.backbone("output")
        for _ in range(TWICE):
            (expected,) = partition(house.images[:1])
        state = state_of(model.graph)
        model.release(state.keys(), lambda wanted: {name: state[name] for name in wanted})
        assert torch.equal(partition(house.images[:1])[0], expected)  # the same half once more
        assert rounding(model.backbone("output")(house.images[:1])[0], expected) <= 1e-5  # not packed yet
