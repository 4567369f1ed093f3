from __future__ import annotations

import pytest
import torch
from comparisons import rounding
from torch import nn

from split_infer_ros.engines.fusion import MAX_LAYOUTS, MAX_SIGNATURES, FusedConv2d, fuse_convolutions
from split_infer_ros.split.graph import trace

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"),
]


def check(model: nn.Module, fused: int, images: torch.Tensor) -> list[str]:
    """Fuses, compares the results, and returns the class names of the remaining modules."""
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    with torch.inference_mode():
        expected = model(images.clone())
        graph = trace(model)
        fuse_convolutions(graph)
        outputs = graph(images.clone())
        assert rounding(outputs, expected) <= 1e-5  # another kernel
        assert expected.std() > 0.1, "the results are equal because they are trivial"
        assert torch.equal(model(images.clone()), expected), "the model itself changed"
    kinds = [type(module).__name__ for module in graph.children()]
    assert sum(isinstance(module, FusedConv2d) for module in graph.modules()) == fused
    return kinds


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU(inplace=True),
        nn.ReLU6(),
        nn.Hardtanh(-0.5, 1.5),
        nn.Hardswish(),
        nn.SiLU(),
        nn.LeakyReLU(0.2),
        nn.Identity(),
        nn.GELU(),
    ],
    ids=lambda activation: type(activation).__name__,
)
def test_an_activation_becomes_part_of_its_convolution(activation: nn.Module, channels_last: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), activation)
    images = torch.randn(2, 3, 9, 12)
    if channels_last:
        images = images.contiguous(memory_format=torch.channels_last)
    check(model, 1, images)


@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(4, 8, 1, bias=False),
        nn.Conv2d(4, 4, 3, groups=4, padding=2, dilation=2),
        nn.Conv2d(4, 6, (3, 5), stride=(1, 2)),
    ],
)
@pytest.mark.parametrize("batch", [1, 5])
def test_every_kind_of_convolution_is_fused(convolution: nn.Module, batch: int) -> None:
    check(nn.Sequential(convolution, nn.ReLU()), 1, torch.randn(batch, 4, 13, 11))


@pytest.mark.parametrize("options", [{"padding": "same"}, {"padding": 1, "padding_mode": "reflect"}])
def test_unsupported_convolutions_stay(options: dict[str, object]) -> None:
    check(nn.Sequential(nn.Conv2d(3, 8, 3, **options), nn.ReLU()), 0, torch.randn(1, 3, 8, 8))  # type: ignore[arg-type]


class Shared(nn.Module):
    """A convolution that runs twice, whose result has another user besides its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 3, 3, padding=1)
        self.relu = nn.ReLU()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        first = self.convolution(images)
        return self.relu(self.convolution(self.relu(first) + first))


def test_results_with_several_users_are_kept() -> None:
    check(Shared(), 2, torch.randn(1, 3, 8, 8))


def test_weights_are_packed_for_each_repeated_call_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = FusedConv2d(nn.Conv2d(3, 16, 3), None)
    num_threads = 1
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)

    def packed_at(side: int, batch: int = 1) -> bool:
        fused(torch.zeros(batch, 3, side, side))
        return fused.is_packed_for((batch, 3, side, side))

    assert [packed_at(side) for side in (8, 6, 8, 6, 8)] == [False, False, True, True, True], "sizes that alternate"
    assert [packed_at(8, batch=2), packed_at(8), packed_at(8, batch=2)] == [False, True, True], "batches do"
    num_threads = 2
    assert [packed_at(8), packed_at(8)] == [False, True], "the number of threads changed"
    num_threads = 1
    assert packed_at(8)


def test_signatures_are_bounded() -> None:
    fused = FusedConv2d(nn.Conv2d(3, 16, 3), None)
    for side in range(4, 5 + MAX_SIGNATURES):
        for _ in range(2):
            fused(torch.zeros(1, 3, side, 4))
        assert fused.num_layouts <= MAX_LAYOUTS
    assert not fused.is_packed_for((1, 3, 4, 4))
    assert fused.is_packed_for((1, 3, 4 + MAX_SIGNATURES, 4))


def test_more_layouts_than_are_kept_are_not_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a detector's convolution that runs on maps of many sizes."""
    fused, packs = FusedConv2d(nn.Conv2d(8, 8, 3), None), 0
    pack = torch.ops.mkldnn._reorder_convolution_weight

    def count(weight: torch.Tensor, *arguments: object) -> torch.Tensor:
        nonlocal packs
        packs += 1
        return pack(weight, *arguments)

    layouts = {size: torch.tensor([size], dtype=torch.uint8) for size in range(MAX_LAYOUTS + 2)}
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_convolution_weight", count)
    monkeypatch.setattr(torch.ops.mkldnn, "_get_mkldnn_serialized_md", lambda packed: layouts[packs - 1])
    for _ in range(5):
        for side in range(4, 4 + len(layouts)):
            fused(torch.zeros(1, 8, side, side))
    assert packs == len(layouts)
    assert [fused.is_packed_for((1, 8, side, side)) for side in range(4, 9)] == [True] * MAX_LAYOUTS + [False] * 2


def test_calls_of_one_layout_share_a_copy() -> None:
    fused = FusedConv2d(nn.Conv2d(64, 64, 3), None)
    for count in (1, 2, 3, 4, 5) * 2:
        fused(torch.zeros(count, 64, 20, 20))
    assert all(fused.is_packed_for((count, 64, 20, 20)) for count in (1, 2, 3, 4, 5))
    assert fused.num_layouts <= 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("batch", [1, 4])
def test_packed_weights_give_the_same_bits(batch: int, layout: torch.memory_format) -> None:
    """The input is always channels last, and oneDNN chooses the kernel by the input.

    It converts plain weights to the layout of the packed ones.
    """
    fused = FusedConv2d(nn.Conv2d(3, 16, 3), nn.ReLU())
    images = torch.randn(batch, 3, 20, 20).contiguous(memory_format=layout)
    with torch.inference_mode():
        assert torch.equal(fused(images), fused(images))
        assert fused.is_packed_for(images.shape)
