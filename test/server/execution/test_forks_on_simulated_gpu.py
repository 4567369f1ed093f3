"""Several models forked from one stream of the simulated GPU run concurrently, and end before the work that follows."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from simulated_gpu import GPU, Gpu, simulated

from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.execution.model_streams import ModelStreams

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
