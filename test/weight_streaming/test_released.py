"""Released weights are read back for new partitions. Partitions in use keep theirs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from all_layers_model import TILE_MB, Odd, PackedModel
from comparisons import rounding
from networks import graph_of, network_of
from torch import nn

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.errors import WeightsError
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.releasable_graph import Fetch
from split_infer_ros.split.torch_network import TorchNetwork
from split_infer_ros.split.weightless_network import weightless_network
from split_infer_ros.torch_graphs.module_state import state_of
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.unpack import unpack_weights

pytestmark = pytest.mark.numeric

CALLS_UNTIL_PACKED = 2  # of a convolution; later calls may round otherwise


def release(model: SplitModel, names: Collection[str], fetch: Fetch) -> None:
    """Releases weights as streaming does."""
    network_of(model).graph.release(names, fetch)
    model.drop_partitions()


@pytest.fixture
def model(packed_model: PackedModel) -> SplitModel:
    return SplitModel(TorchNetwork(packed_model.model.entry, Odd().eval()))


@pytest.fixture
def path(model: SplitModel, tmp_path: Path) -> Path:
    pack_model(network_of(model), tmp_path / "odd.weights", num_threads=1, tile_mb=TILE_MB)
    return tmp_path / "odd.weights"


def test_new_partition_reads_released_weights_back(packed_model: PackedModel, model: SplitModel, path: Path) -> None:
    with torch.inference_mode():
        expected = model.head("default")(*model.backbone("default")(packed_model.images[:1]))
    names = state_of(graph_of(model)).keys()
    requested: list[str] = []

    def fetch(wanted: Any) -> Any:
        requested.extend(wanted)
        return unpack_weights(network_of(model), path, num_threads=1, names=wanted)

    release(model, names, fetch)
    assert sum(tensor.untyped_storage().nbytes() for tensor in state_of(graph_of(model)).values()) < 2000
    with torch.inference_mode():
        head = model.head("default")
        assert requested
        assert set(requested) < set(names), "it needs some of the weights only"
        found = head(*model.backbone("default")(packed_model.images[:1]))
    assert torch.equal(found[0], expected[0])  # the first call of two partitions with the same weights
    assert sorted(requested) == sorted(names)


def test_model_with_released_weights_is_packed_the_same(model: SplitModel, path: Path) -> None:
    release(
        model,
        state_of(graph_of(model)).keys(),
        lambda wanted: unpack_weights(network_of(model), path, num_threads=1, names=wanted),
    )
    again = path.with_name("again.weights")
    pack_model(network_of(model.placed(model.device)), again, num_threads=1, tile_mb=TILE_MB)
    assert again.read_bytes() == path.read_bytes()


def test_model_that_never_had_weights_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"shapes has no weights to pack: 'stem\..*' was never loaded"):
        pack_model(weightless_network(find_model("shapes")), tmp_path / "w", num_threads=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("convolutions", [Convolutions.PACKED, Convolutions.CONTIGUOUS])
def test_partition_in_use_keeps_its_weights(
    packed_model: PackedModel, model: SplitModel, path: Path, convolutions: Convolutions
) -> None:
    other = model.placed(model.device, ExecutionConfig(convolutions=convolutions))
    images = packed_model.images[:1]
    with torch.inference_mode():
        backbone, head = other.backbone("default"), other.head("default")
        for _ in range(CALLS_UNTIL_PACKED):
            (expected,) = head(*backbone(images))
        release(
            model,
            state_of(graph_of(model)).keys(),
            lambda wanted: unpack_weights(network_of(model), path, num_threads=1, names=wanted),
        )
        assert torch.equal(head(*backbone(images))[0], expected)  # the same partition once more


class Nested(nn.Module):
    """Has torch's own layer that contains layers and is called as one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 4, stride=4)
        self.layers = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.last = nn.Linear(8, 500)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.layers(self.first(images).flatten(2).transpose(1, 2)).mean(1))
        return found


def test_partition_keeps_weights_of_nested_layers(packed_model: PackedModel) -> None:
    model = SplitModel(TorchNetwork(replace(packed_model.model.entry, default_split_point=None), Nested().eval()))
    with torch.inference_mode():
        partition = model.backbone("output")
        for _ in range(CALLS_UNTIL_PACKED):
            (expected,) = partition(packed_model.images[:1])
        state = state_of(graph_of(model))
        release(model, state.keys(), lambda wanted: {name: state[name] for name in wanted})
        assert torch.equal(partition(packed_model.images[:1])[0], expected)  # the same partition once more
        assert rounding(model.backbone("output")(packed_model.images[:1])[0], expected) <= 1e-5  # not packed yet
