"""Streamed weights on a real GPU give the results of resident ones, also while frames flow."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from gpu_frames import SETTINGS, check_scores, picture, running
from networks import graph_of, network_of

from split_infer_ros.runtime.streams import Stream, current_fence, current_mark
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.delay_model import predict_delay
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_partition import open_packed
from split_infer_ros.weight_streaming.profiling import profile_partition
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_memory import CopiedRingMemory, MappedRingMemory
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.streaming import stream_backbone


@pytest.mark.parametrize(
    "residency", [Residency.SYNCHRONOUS, Residency.ASYNCHRONOUS, Residency.TWO_STAGE, Residency.AUTO]
)
@pytest.mark.parametrize("name", ["shapes", "resnet18"])
def test_streamed_weights_give_the_results_of_resident_ones(
    name: str, residency: Residency, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    model = load_model(ModelSpec(name, "none", "cuda:0"))
    images = torch.rand(1, *model.entry.image_shape, device="cuda:0").contiguous(memory_format=torch.channels_last)
    settings = replace(StageSettings(split_point="default"), weights_residency=residency)
    with torch.inference_mode():
        expected = [value.clone() for value in model.backbone("default")(images)]
        partition = stream_backbone(model, model.split_point("default"), settings, batch_size=1)
        assert partition is not None
        for _ in range(20):
            torch.testing.assert_close(list(partition(images)), expected, rtol=1e-4, atol=1e-4)
    assert partition.stats().bytes_read > 0
    if (
        partition.note == "" and residency is not Residency.AUTO
    ):  # else the disk cannot write to memory that the GPU reads
        assert isinstance(
            partition.ring_memory, MappedRingMemory if residency is Residency.TWO_STAGE else CopiedRingMemory
        )
    partition.close()


def test_residency_changes_while_frames_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    resident, streamed = SETTINGS, replace(SETTINGS, weights_residency=Residency.ASYNCHRONOUS)
    with running(resident) as (pipeline, scores):
        for turn, settings in enumerate((resident, streamed, resident, streamed)):
            pipeline.backbone.configure(settings)
            pipeline.feed(picture(number) for number in range(8 * turn, 8 * turn + 8))
            assert (pipeline.backbone.report(0.0).weights is not None) == (settings is streamed)
        pipeline.finish()
    assert sorted(scores) == list(range(32))
    check_scores(scores)


def test_pipelines_take_their_memory_and_their_predicted_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides, synchronous takes two of the largest block each, and asynchronous one.

    The layers' times are taken by the GPU. A prediction from them is within a factor of two of the measured pass: the
    benchmark says how close it is.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = load_model(ModelSpec("resnet18", "none", "cuda:0"))
    device = model.device
    pack_model(network_of(load_model(ModelSpec("resnet18", "none", "cpu"))), tmp_path / "w", num_threads=None)
    images = torch.rand(1, *model.entry.image_shape, device=device).contiguous(memory_format=torch.channels_last)
    ops = DeviceOps(Stream(device).copy, partial(current_fence, device), partial(current_mark, device))

    def open_in(memory_plan: MemoryPlan) -> StreamedPartition:
        ring_memory = CopiedRingMemory.allocate(memory_plan.ring.capacity, device, ops)
        packed = open_packed(network_of(model), graph_of(model), tmp_path / "w", num_threads=None)
        return StreamedPartition.open(packed, memory_plan, ring_memory=ring_memory, mark=ops.mark)

    packed = open_packed(network_of(model), graph_of(model), tmp_path / "w", num_threads=None)
    sizes, steps = packed.block_sizes, packed.step_blocks
    with torch.inference_mode(), Stream(device).work("test"):
        profile = profile_partition(open_in, sizes, steps, inputs=[images], passes=4, is_copied=True)
        assert 0 < profile.copy_bandwidth < math.inf
        for residency, places in ((Residency.SYNCHRONOUS, 4), (Residency.ASYNCHRONOUS, 2)):
            memory_plan = plan_memory(residency, sizes, steps, is_copied=True)
            assert memory_plan.ring_bytes == places * max(sizes)
            partition = open_in(memory_plan)
            delays_s = []
            for _ in range(8):
                partition(images)
                assert partition.times is not None
                times = partition.times
                delays_s.append(sum(times.step_s) + times.tail_s + times.stalled_s)
            partition.close()
            ratio = predict_delay(memory_plan, profile) / statistics.median(delays_s[2:])
            assert 0.5 < ratio < 2.0, residency
