"""A module that torch.export traces for single batch sizes only."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.split.export import UntraceableError
from split_infer_ros.split.load import make_network
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.sized_network import SizedNetwork
from split_infer_ros.split.torch_network import TorchNetwork, torch_network
from split_infer_ros.torch_graphs.module_state import state_of

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
SIDE = 12
ROUNDING = 1e-5
"""Of the largest result: sums of at most 72 products in float32, in any order, differ by less than 72 x 2^-24 = 4e-6 of
the sum of their sizes."""


class Fixed(nn.Module):
    """Writes the batch size into a constant, as detection heads of well-known libraries do.

    Args:
        differs_alone: whether a single image takes another way, with another tensor between the blocks.
    """

    def __init__(self, differs_alone: bool = False) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.neck = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, stride=2), nn.ReLU())
        self.head = nn.Linear(8, 5)
        self.differs_alone = differs_alone

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        if self.differs_alone and len(images) == 1:
            x = x.flatten(2)[..., None].reshape(1, 8, SIDE, SIDE)
            x = self.neck(x).flatten(2)
            return self.head(x.mean(2))  # type: ignore[no-any-return]
        rows = self.neck(x).view(int(images.shape[0]), 8, -1)
        return self.head(torch.cat([row[None] for row in rows]).mean(2))  # type: ignore[no-any-return]


def entry() -> ModelEntry:
    return ModelEntry(
        name="fixed",
        summary="",
        build=lambda: module(),
        weights=None,
        preprocess=Preprocess(SIDE, SIDE),
        labels=(),
        default_split_point=None,
        decode=classify(SIDE, SIDE),
    )


def module(differs_alone: bool = False) -> Fixed:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Fixed(differs_alone).eval()


def images(count: int) -> Tensor:
    return torch.randn((count, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(1))


def sized_network(traced: Fixed) -> SizedNetwork:
    """Makes a network as a model's load does, which tries one graph for all sizes first."""
    made = make_network(entry(), traced)
    assert isinstance(made, SizedNetwork)
    return made


@pytest.fixture(scope="module")
def model() -> SplitModel:
    return SplitModel(sized_network(module()))


def assert_right(model: SplitModel, name: str, count: int, reference: nn.Module) -> None:
    """Asserts that both partitions together give what the module gives."""
    batch = images(count)
    with torch.inference_mode():
        expected = reference(batch)
        assert count == 1 or (expected[0] - expected[1]).abs().max() > 0.01  # results depend on the image
        features = model.backbone(name)(batch.contiguous(memory_format=torch.channels_last))
        (found,) = model.head(name)(*features)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() <= ROUNDING * expected.abs().max()


def test_every_size_gives_the_results_of_the_module(model: SplitModel) -> None:
    for count in (3, 1, 2, 4):
        for point in model.split_points:
            assert_right(model, point.name, count, module())


def test_split_points_are_those_of_two_images(model: SplitModel) -> None:
    names = [point.name for point in model.split_points]
    assert names[0] == "input"
    assert {"stem.1", "neck.1"} <= set(names)
    assert names[-1] == "output"
    assert [spec.shape for spec in model.split_point("stem.1").tensors] == [(8, SIDE, SIDE)]


def test_sizes_share_the_weights(model: SplitModel) -> None:
    assert isinstance(model.network, SizedNetwork)
    networks = [model.network.for_size(count) for count in (2, 3)]
    pointers = [{tensor.data_ptr() for tensor in state_of(each.graph.module).values()} for each in networks if each]
    assert len(pointers) == 2
    assert pointers[0] == pointers[1]


def test_all_sizes_are_warmed_up_and_the_note_says_so(model: SplitModel) -> None:
    assert list(model.warm_up_sizes(4)) == [1, 2, 3, 4]
    assert "traced for each size at the start" in model.network.note


def test_segments_follow_each_other(model: SplitModel) -> None:
    with torch.inference_mode():
        for segments in model.segments():
            values: tuple[Tensor, ...] = (images(3),)
            for segment in segments:
                values = segment(*values)
            expected = module()(images(3))
            assert (values[0] - expected).abs().max() <= ROUNDING * expected.abs().max()


def test_size_with_other_split_points_runs_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    network = sized_network(module(differs_alone=True))
    assert network.for_size(3) is not None
    find, asked = network.for_size, Counter[int]()

    def for_size(size: int) -> TorchNetwork | None:
        asked[size] += 1
        return find(size) if size != 3 else None  # as if its graph had other split points

    monkeypatch.setattr(network, "for_size", for_size)
    made = SplitModel(network)
    for point in made.split_points:
        for count in (1, 3):
            assert_right(made, point.name, count, module(differs_alone=True))
    assert asked[3]


def test_other_placements_share_the_source(model: SplitModel) -> None:
    placed = model.placed(CPU)
    assert placed.network is model.network
    assert model.network.num_parameters() == sum(each.numel() for each in module().parameters())
    assert model.network.num_parameters("stem.1") == 3 * 8 * 9 + 8
    assert len(model.kernels_before("stem.1")) == 2, "a convolution with its batch norm, and an activation"
    assert [each.weight_bytes for each in model.kernels_before("stem.1")] == [4 * (3 * 8 * 9 + 8), 0]
    assert_right(placed, "stem.1", 2, module())
    with pytest.raises(ConfigurationError, match="so engine openvino cannot take it"):
        model.placed(CPU, ExecutionConfig(engine=Engine.OPENVINO))
    with pytest.raises(ConfigurationError, match="fixed is traced for each batch size: leave it"):
        torch_network(model, "Streaming weights", "leave it.")


def test_module_that_branches_on_values_is_refused_with_both_reasons() -> None:
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((2, 3)) if x.sum() > 0 else x.amax((2, 3))

    with pytest.raises(UntraceableError, match=r"of any N and must not branch on values \(torch.fx: "):
        make_network(entry(), Branching())


def test_module_for_any_size_stays_one_graph() -> None:
    whole = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, 5))
    assert isinstance(make_network(entry(), whole), TorchNetwork)
