"""Several models forked from one stream of the simulated GPU run concurrently, and end before the work that follows."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from simulated_gpu import GPU, Gpu, simulated
from torch import Tensor

from split_infer_ros.engines.cuda.model_streams import ModelStreams
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.streams import Stream

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
