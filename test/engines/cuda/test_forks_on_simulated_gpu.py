"""Several models forked from one stream of the simulated GPU run concurrently, and end before the work that follows."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from unittest.mock import Mock

import pytest
import torch
from simulated_gpu import GPU, Gpu, simulated
from torch import Tensor, fx, nn

from split_infer_ros.engines.cuda.model_streams import ModelStreams
from split_infer_ros.engines.merged_layers import merge_layers
from split_infer_ros.runtime.captures import Capture
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.vision_ops.fused_layers import FusedLayers

pytestmark = pytest.mark.usefixtures("plain_operators")

NAMES = "abc"


def test_forks_run_concurrently() -> None:
    """Forks are not ordered, so they race for a buffer that all of them write."""
    gpu = Gpu()
    with suppress(AssertionError), simulated(gpu), torch.inference_mode():
        stream, shared = Stream(GPU), torch.zeros(4, device=GPU)
        with stream.work("execution"):
            ModelStreams(GPU, stream).run(
                dict.fromkeys(NAMES, lambda images: [shared.add_(images)]),
                {name: torch.ones(4, device=GPU) for name in NAMES},
            )
    assert len(gpu.races) >= 2


def test_forks_end_before_what_follows(gpu: Gpu) -> None:
    stream = Stream(GPU)
    forks = ModelStreams(GPU, stream)
    with torch.inference_mode(), stream.work("execution"):
        for factor in range(4):
            inputs = {name: torch.full((4,), float(index), device=GPU) for index, name in enumerate(NAMES)}
            outputs = forks.run(dict.fromkeys(NAMES, lambda images, factor=factor: [images * factor]), inputs)
            found = torch.stack([value for values in outputs.values() for value in values]).cpu()
            assert found[:, 0].tolist() == [0.0, factor, 2.0 * factor]


def test_a_graph_without_room_is_refused(gpu: Gpu) -> None:
    streams = ModelStreams(GPU, Stream(GPU))

    def run(images: Tensor) -> list[Tensor]:
        is_recording = torch.cuda.is_current_stream_capturing()
        return [torch.empty(2 * gpu.total if is_recording else 1, dtype=torch.uint8, device=GPU)]

    with pytest.raises(OutOfMemory, match="There is no room for the graph"):
        streams.record({"a": run}, {"a": torch.zeros((1, 3, 2, 2), device=GPU)})


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Capture[object]]]:
    """The recorded work between which ``ModelStreams`` chose. The last is taken; the simulated GPU keeps no time."""
    tried: list[Sequence[Capture[object]]] = []

    def fastest(recorded: Sequence[Capture[object]], _: Stream) -> Capture[object]:
        tried.append(recorded)
        return recorded[-1]

    monkeypatch.setattr("split_infer_ros.engines.cuda.model_streams.fastest", fastest)
    return tried


def record_and_compare() -> None:
    """Records two models with merged layers, and compares the graph's results with those of the models."""
    graphs = {}
    for name, channels in (("a", 4), ("b", 6)):
        torch.manual_seed(channels)
        net = nn.Sequential(nn.Conv2d(3, channels, 3), nn.ReLU(), nn.Conv2d(channels, 2, 1))
        graphs[name] = fx.symbolic_trace(WithTuple(net.to(GPU).requires_grad_(False)))
        merge_layers(graphs[name])
    stream = Stream(GPU)
    with torch.inference_mode():
        images = {name: torch.rand(2, 3, 6, 6).to(GPU) for name in graphs}
        recorded = ModelStreams(GPU, stream).record(graphs, images)
        with stream.work("execution"):
            found = {name: value.cpu() for name, (value,) in recorded.run(images).items()}
            expected = {name: graphs[name](images[name])[0].cpu() for name in graphs}
    for name in graphs:
        torch.testing.assert_close(found[name], expected[name], atol=1e-5, rtol=1e-5)  # in another memory format


def test_models_with_merged_layers_are_recorded_forked_and_fused(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, tried: list[Sequence[Capture[object]]]
) -> None:
    """Here the library computes fused layers."""
    monkeypatch.setattr(FusedLayers, "is_fused", property(lambda _: True, lambda *_: None), raising=False)
    record_and_compare()
    assert [len(recorded) for recorded in tried] == [2]


def test_models_are_recorded_once_if_no_layers_are_fused(gpu: Gpu, tried: list[Sequence[Capture[object]]]) -> None:
    record_and_compare()
    assert not tried


@pytest.mark.parametrize("error", [RuntimeError("no kernel"), ValueError("no kernel")], ids=repr)
def test_the_forked_graph_stays_if_fusing_fails(
    gpu: Gpu,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tried: list[Sequence[Capture[object]]],
    error: Exception,
) -> None:
    monkeypatch.setattr(FusedLayers, "forward", Mock(side_effect=error))
    record_and_compare()
    assert not tried
    assert f"a and b are not fused ({type(error).__name__}: no kernel)." in caplog.text


class WithTuple(nn.Module):
    """A net whose result is a tuple, as a partition's is."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (self.net(images),)
