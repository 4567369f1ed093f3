"""The measured profile of a partition describes it as it is when nothing else disturbs it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.profiling import profile_layers, profile_partition
from split_infer_ros.weight_streaming.streamed_partition import PassTimes
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats


class ScriptedPartition:
    """A partition whose passes have given times: steps, tail, bytes read and seconds of reading."""

    def __init__(self, *passes: tuple[tuple[float, ...], float, int, float]) -> None:
        self._passes = list(passes)
        self._bytes_read, self._reading_s = 0, 0.0
        self.times: PassTimes | None = None

    def __call__(self, images: torch.Tensor) -> None:
        step_s, tail_s, bytes_read, reading_s = self._passes.pop(0)
        self.times = PassTimes(step_s, tail_s, 0.0)
        self._bytes_read, self._reading_s = self._bytes_read + bytes_read, self._reading_s + reading_s

    def stats(self) -> PrefetchStats:
        return PrefetchStats(0, self._bytes_read, self._reading_s, 0.0)


class SimulatedPartition:
    """A partition that waits as the delay model predicts for a profile. Each pass reads all bytes."""

    def __init__(self, memory_plan: MemoryPlan, profile: StreamingProfile) -> None:
        self.plan, self._profile, self.is_closed, self._passes = memory_plan.ring, profile, False, 0
        stalled_s = predict_delay(memory_plan, profile) - profile.compute_s
        self.times = PassTimes(profile.step_s, profile.tail_s, stalled_s)

    def __call__(self, images: torch.Tensor) -> None:
        self._passes += 1

    def stats(self) -> PrefetchStats:
        bytes_read = self._passes * sum(chunk.nbytes for chunk in self.plan.chunks)
        return PrefetchStats(0, bytes_read, bytes_read / self._profile.bandwidth, 0.0)

    def close(self) -> None:
        self.is_closed = True


def test_shortest_times_count_without_the_first_pass() -> None:
    partition = ScriptedPartition(((0.1, 0.1), 0.1, 100, 0.1), ((3.0, 1.0), 2.0, 100, 4.0), ((2.0, 5.0), 3.0, 100, 2.0))
    profile = profile_layers(partition, [torch.zeros(1)], 3)  # type: ignore[arg-type]
    assert (profile.step_s, profile.tail_s, profile.bandwidth) == ((2.0, 1.0), 2.0, 37.5)


def test_checking_counts_as_reading() -> None:
    partition = ScriptedPartition(((1.0,), 1.0, 100, 1.0), ((1.0,), 1.0, 100, 1.0))
    plain = partition.stats
    passes = iter((0, 0, 1, 2))  # in turns before and after a pass

    def stats() -> PrefetchStats:
        return replace(plain(), checking_s=3.0 * next(passes))

    partition.stats = stats  # type: ignore[method-assign]
    assert profile_layers(partition, [torch.zeros(1)], 2).bandwidth == 25.0  # type: ignore[arg-type]


def test_read_latency_is_measured_with_the_smallest_ring() -> None:
    """With blocks of two pages and steps of a second, waiting with the smallest ring shows the latency."""
    opened: list[SimulatedPartition] = []

    def open_partition(memory_plan: MemoryPlan) -> SimulatedPartition:
        opened.append(SimulatedPartition(memory_plan, StreamingProfile((1.0, 1.0, 1.0), 0.0, 2.0 * PAGE, 0.25)))
        return opened[-1]

    profile = profile_partition(
        open_partition,  # type: ignore[arg-type]
        [2 * PAGE] * 3,
        [0, 1, 2],
        inputs=[torch.zeros(1)],
        passes=3,
    )
    assert profile.step_s == (1.0, 1.0, 1.0)
    assert profile.bandwidth == 2.0 * PAGE
    assert profile.read_latency_s == pytest.approx(0.25, rel=1e-3)
    assert [partition.is_closed for partition in opened] == [True, True]
    assert [partition.plan.capacity for partition in opened] == [4 * PAGE, 2 * PAGE]
