"""Streamed weights on the simulated GPU give the results of resident ones, without races."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from random import Random

import pytest
import torch
from all_layers_model import SIDE
from all_layers_on_gpu import odd_on_gpu, streamed
from hypothesis import given
from hypothesis import strategies as st
from simulated_gpu import GPU, Gpu, simulated
from simulated_settings import drawn

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.ring_memory import CopiedRingMemory, MappedRingMemory
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.streaming import stream_backbone
from split_infer_ros.weight_streaming.weights_file import WeightsFile

pytestmark = pytest.mark.usefixtures("plain_operators")

RESIDENCIES = Residency.SYNCHRONOUS, Residency.ASYNCHRONOUS, Residency.TWO_STAGE, Residency.AUTO


def check_passes(residency: Residency) -> None:
    """Runs passes and compares each with resident weights."""
    model = odd_on_gpu()
    with torch.inference_mode():
        images = torch.rand(2, 3, SIDE, SIDE).to(GPU).contiguous(memory_format=torch.channels_last)
        (expected,) = (value.cpu() for value in model.backbone("output")(images))
        partition, stream = streamed(model, residency), Stream(GPU)
        for _ in range(4):
            with stream.work("backbone"):
                (found,) = partition(images)
                values = found.cpu()
            # Tiles of a layer add up in another order than the whole.
            torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
    assert partition.stats().bytes_read > 0
    partition.close()


@pytest.mark.parametrize("residency", RESIDENCIES, ids=lambda residency: residency.value)
@drawn(2)
@given(seed=st.integers(0, 10**6))
def test_streamed_weights_give_the_results_of_resident_ones(residency: Residency, seed: int) -> None:
    with simulated(Gpu(Random(seed).randrange)):
        check_passes(residency)


@pytest.mark.parametrize("residency", RESIDENCIES, ids=lambda residency: residency.value)
def test_passes_wait_for_a_slow_disk(residency: Residency, gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    read = WeightsFile.read

    def slow(file: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
        time.sleep(0.01)
        read(file, offset, into, layer)

    monkeypatch.setattr(WeightsFile, "read", slow)
    check_passes(residency)


def test_refused_page_locking_falls_back_to_three_stages(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ConfigurationError("cudaHostAlloc failed")

    monkeypatch.setattr(MappedRingMemory, "allocate", refused)
    model = odd_on_gpu()
    settings = replace(StageSettings(split_point="output"), weights_residency=Residency.TWO_STAGE)
    partition = stream_backbone(model, model.split_point("output"), settings, batch_size=settings.batch_size)
    assert partition is not None
    assert "asynchronous is used" in partition.note
    partition.close()


def auto_memory(model: SplitModel, budget_bytes: float = math.inf) -> StreamedPartition:
    settings = replace(
        StageSettings(split_point="output"),
        weights_residency=Residency.AUTO,
        weights_budget_bytes=budget_bytes,
        weights_delay_s=60.0,  # times mean nothing on a simulated GPU, so every delay is allowed
    )
    partition = stream_backbone(model, model.split_point("output"), settings, batch_size=settings.batch_size)
    assert partition is not None
    return partition


def test_auto_takes_the_least_memory_of_all_pipelines(gpu: Gpu) -> None:
    """One place that both sides see is half of one place on each side."""
    partition = auto_memory(odd_on_gpu())
    assert isinstance(partition.ring_memory, MappedRingMemory)
    partition.close()


def test_auto_copies_where_the_gpu_cannot_read_the_hosts_memory(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise ConfigurationError("cudaHostGetDevicePointer failed")

    monkeypatch.setattr(MappedRingMemory, "allocate", refused)
    model = odd_on_gpu()
    partition = auto_memory(model)
    assert isinstance(partition.ring_memory, CopiedRingMemory)
    with torch.inference_mode():
        partition(torch.rand(1, 3, SIDE, SIDE).to(GPU))
    assert partition.stats().bytes_copied > 0
    partition.close()


def test_auto_names_the_budget_that_it_needs(gpu: Gpu) -> None:
    with pytest.raises(ConfigurationError, match=r"needs a weights_budget_mb of 0\.\d for this model, not 0\.01"):
        auto_memory(odd_on_gpu(), budget_bytes=10_000)
