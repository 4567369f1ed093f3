"""The plan that ``auto`` takes is the best of those that it has run, whatever was predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.automatic_memory import choose_memory
from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings
from split_infer_ros.weight_streaming.step_timer import PassTimes
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats

BLOCKS = 16
STEP_S, PAGE_S = 2e-3, 1.5e-3  # of a step, and of reading its block
PROFILE = StreamingProfile((STEP_S,) * BLOCKS, 0.0, PAGE / PAGE_S)
SETTINGS = WeightsSettings(weights_residency=Residency.AUTO, weights_delay_s=1e-3)


class PlannedPartition:
    """A partition whose passes take as long as they are said to take. It computes nothing."""

    def __init__(self, memory_plan: MemoryPlan, pass_s: float) -> None:
        self._read = sum(chunk.nbytes for chunk in memory_plan.ring.chunks)
        self._stats = PrefetchStats(0, 0, 0.0, 0.0)
        stalled = pass_s - PROFILE.compute_s
        self.times = PassTimes(PROFILE.step_s, 0.0, stalled)

    def __call__(self, *inputs: torch.Tensor) -> None:
        before = self._stats
        nbytes = before.bytes_read + self._read
        self._stats = PrefetchStats(before.passes + 1, nbytes, nbytes / PROFILE.bandwidth, 0.0)

    def stats(self) -> PrefetchStats:
        return self._stats

    def close(self) -> None:
        """Nothing was opened."""


def chosen(pass_s: Callable[[MemoryPlan], float]) -> tuple[MemoryPlan, Sequence[MemoryPlan]]:
    """Returns what ``auto`` takes, and the plans that it ran; ``pass_s`` says how long passes take."""
    ran = []

    def open_partition(memory_plan: MemoryPlan) -> Any:
        ran.append(memory_plan)
        return PlannedPartition(memory_plan, pass_s(memory_plan))

    spec: Any = SimpleNamespace(zeros=lambda count: [torch.zeros(count)], batch_size=1, num_threads=1)
    packed: Any = SimpleNamespace(block_sizes=[PAGE] * BLOCKS, step_blocks=list(range(BLOCKS)), kept_bytes=0)
    return choose_memory(spec, SETTINGS, packed, {False: open_partition}), ran


def held(memory_plan: MemoryPlan) -> int:
    """Returns the bytes that a plan takes."""
    return memory_plan.ring_bytes + memory_plan.resident_blocks * PAGE


def as_predicted(memory_plan: MemoryPlan) -> float:
    return predict_delay(memory_plan, PROFILE)


def test_passes_as_predicted_need_little_memory() -> None:
    """Reads are assumed to be slow in predictions. Where they are not, a smaller plan is fast enough."""
    plan, ran = chosen(as_predicted)
    fast_enough = [each for each in ran[2:] if as_predicted(each) <= PROFILE.compute_s + 1e-3]
    assert held(plan) == min(map(held, fast_enough))
    assert as_predicted(plan) <= PROFILE.compute_s + 1e-3


@pytest.mark.parametrize("slow_share", [0.3, 3.0])
def test_plan_that_is_slower_than_predicted_is_not_taken(slow_share: float) -> None:
    _, ran = chosen(as_predicted)
    tried = {held(each): each for each in ran[2:]}
    assert len(tried) >= 2
    slow = tried[min(tried)]

    def pass_s(memory_plan: MemoryPlan) -> float:
        return as_predicted(memory_plan) * (1 + slow_share if memory_plan == slow else 1)

    assert chosen(pass_s)[0] != slow


def test_no_other_plan_that_was_run_is_better_in_both() -> None:
    for factor in (0.5, 1.0, 1.7, 4.0):
        plan, ran = chosen(lambda memory_plan: as_predicted(memory_plan) * factor + 1e-9 * held(memory_plan))
        for other in ran[2:]:
            faster = as_predicted(other) * factor + 1e-3 < as_predicted(plan) * factor
            assert not (faster and held(other) < held(plan))


def test_plan_whose_weights_do_not_come_is_not_taken() -> None:
    _, ran = chosen(as_predicted)
    broken = min(ran[2:], key=held)

    def pass_s(memory_plan: MemoryPlan) -> float:
        if memory_plan == broken and len(ran) > 2:
            raise StreamError(DropReason.WEIGHTS_STALLED, "Weights did not come.")
        return as_predicted(memory_plan)

    assert chosen(pass_s)[0] != broken
