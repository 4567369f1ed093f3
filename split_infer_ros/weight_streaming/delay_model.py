"""Predicts how long a pass takes with a memory plan, by simulating passes from the layers' sizes and times.

A chunk is read as soon as its part of the ring is free. With three stages, a block is then copied as soon as its place
on the device is free. A layer runs as soon as its weights are there (paper 002: asynchronous and two-stage pipelines).
In lockstep, all stages begin their next block together (paper 002: synchronous pipeline). The module is pure: numbers
in, seconds out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.ring_plan import RingPlan

PASSES = 4  # the first passes differ; later ones take equally long
BISECTIONS = 20


@dataclass(frozen=True, slots=True)
class StreamingProfile:
    """Measured speed of a partition's layers, and of the reads and copies that bring their weights.

    Attributes:
        step_s: seconds of each step.
        tail_s: seconds after the last step.
        bandwidth: bytes that are read a second.
        read_latency_s: extra seconds of each read, including the hand-over from prefetcher to layer.
        copy_bandwidth: bytes that are copied to the device a second; infinite if nothing is copied.
    """

    step_s: tuple[float, ...]
    tail_s: float
    bandwidth: float
    read_latency_s: float = 0.0
    copy_bandwidth: float = math.inf

    @property
    def compute_s(self) -> float:
        """Seconds of a pass that never waits for weights."""
        return sum(self.step_s) + self.tail_s

    def read_s(self, plan: RingPlan) -> list[float]:
        """Returns the seconds that reading takes, for each chunk of a plan."""
        return [self.read_latency_s + chunk.nbytes / self.bandwidth for chunk in plan.chunks]

    def copy_s(self, plan: RingPlan) -> list[float]:
        """Returns the seconds that copying takes, for each chunk of a plan."""
        return [chunk.nbytes / self.copy_bandwidth for chunk in plan.chunks]


def predict_delay(memory_plan: MemoryPlan, profile: StreamingProfile) -> float:
    """Returns the seconds of one pass in a long series. Each pass already reads the first layers of the next one."""
    ring, staging = memory_plan.ring, memory_plan.staging
    if not ring.chunks:
        return profile.compute_s
    if staging is None:
        stage = _RingStage(ring, profile.read_s(ring))
        return _run_passes(profile, stage, partial(_read, stage))
    if memory_plan.is_lockstep:
        return _lockstep_delay(ring, staging, profile)
    reads, copies = _RingStage(staging, profile.read_s(staging)), _RingStage(ring, profile.copy_s(ring))
    block_ends = [index + 1 for index, chunk in enumerate(staging.chunks) if chunk.is_last]
    return _run_passes(profile, copies, partial(_copy, copies, reads, block_ends))


def fit_latency(profile: StreamingProfile, memory_plan: MemoryPlan, delay_s: float) -> StreamingProfile:
    """Returns the profile with the read latency that explains a measured delay.

    Args:
        profile: a profile without read latency. It is returned unchanged if it predicts at least ``delay_s``.
        memory_plan: a plan with a ring so small that layers wait for reads.
        delay_s: measured seconds of a pass with that plan.
    """
    if predict_delay(memory_plan, profile) >= delay_s:
        return profile
    low, high = 0.0, delay_s / len(memory_plan.ring.chunks)  # at the upper bound, latency alone fills the pass
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if predict_delay(memory_plan, replace(profile, read_latency_s=middle)) < delay_s:
            low = middle
        else:
            high = middle
    return replace(profile, read_latency_s=high)


class _RingStage:
    """A stage that fills a ring chunk by chunk, pass after pass. Times are seconds since the first pass began.

    Args:
        plan: the ring's plan.
        fill_s: seconds to fill each chunk.
    """

    def __init__(self, plan: RingPlan, fill_s: Sequence[float]) -> None:
        self.plan = plan
        self._fill_s = fill_s
        self.done_at: list[float] = []  # when each chunk was filled, counted over all passes
        self._free_at: list[float] = []  # when each chunk's part of the ring became free

    @property
    def has_room(self) -> bool:
        """True if the simulation knows when the next chunk's part of the ring becomes free."""
        return self._overwritten < len(self._free_at)

    def fill(self, not_before: float = 0.0) -> None:
        """Fills the next chunk once its part is free, the previous chunk is done, and ``not_before`` has come."""
        begin = max(not_before, self.done_at[-1] if self.done_at else 0.0)
        if self._overwritten >= 0:
            begin = max(begin, self._free_at[self._overwritten])
        self.done_at.append(begin + self._fill_s[len(self.done_at) % len(self._fill_s)])

    def free(self, count: int, now: float) -> None:
        """Notes that the layers no longer need the first ``count`` chunks."""
        self._free_at.extend([now] * (count - len(self._free_at)))

    @property
    def _overwritten(self) -> int:
        """Index of the last chunk that must be free before the next one is filled; negative if there is none."""
        chunk = len(self.done_at)
        return chunk - self.plan.window[chunk % len(self.plan.window)] - 1


def _read(reads: _RingStage, passes: int) -> None:
    """Reads chunks of the first ``passes`` passes while the ring has room."""
    while len(reads.done_at) < passes * len(reads.plan.chunks) and reads.has_room:
        reads.fill()


def _copy(copies: _RingStage, reads: _RingStage, block_ends: Sequence[int], passes: int) -> None:
    """Reads and copies blocks of the first ``passes`` passes while the rings have room.

    Args:
        copies: the stage that copies blocks to the device.
        reads: the stage that reads chunks to the host. Copying a block frees its place there.
        block_ends: for each block, the number of chunks up to its end.
        passes: number of passes.
    """
    while len(copies.done_at) < passes * len(block_ends) and copies.has_room:
        number, block = divmod(len(copies.done_at), len(block_ends))
        end = number * len(reads.plan.chunks) + block_ends[block]
        while len(reads.done_at) < end:  # there is room, because all earlier blocks were copied
            reads.fill()
        copies.fill(not_before=reads.done_at[end - 1])
        reads.free(end, copies.done_at[-1])


def _run_passes(profile: StreamingProfile, stage: _RingStage, fill: Callable[[int], None]) -> float:
    """Simulates ``PASSES`` passes, and returns the seconds of the last one.

    Args:
        profile: the layers' times.
        stage: the stage that fills the ring from which the layers read.
        fill: fills that ring while it has room. Its argument is how many passes may be filled.
    """
    now = pass_start = 0.0
    plan = stage.plan
    for number in range(PASSES):
        pass_start, chunks_before = now, number * len(plan.chunks)
        for needed, freed, seconds in zip(plan.chunks_needed, plan.chunks_freed, profile.step_s, strict=True):
            fill(number + 1)
            now = max(now, stage.done_at[chunks_before + needed - 1] if needed else 0.0) + seconds
            stage.free(chunks_before + freed, now)
        now += profile.tail_s
    return now - pass_start


def _lockstep_delay(ring: RingPlan, staging: RingPlan, profile: StreamingProfile) -> float:
    """Returns the seconds of all cycles of a pass. In each, one block runs, the next is copied, the one after is read.

    After an odd number of blocks comes an empty cycle, so that the buffers also alternate from pass to pass.
    """
    empty = [0.0] * (len(ring.chunks) % 2)
    run_s = [0.0] * len(ring.chunks) + empty
    for needed, seconds in zip(ring.chunks_needed, profile.step_s, strict=True):
        run_s[max(needed, 1) - 1] += seconds
    run_s[0] += profile.tail_s  # the first block's cycle begins before the previous pass ends
    copy_s, read_s = profile.copy_s(ring) + empty, profile.read_s(staging) + empty
    cycles = len(run_s)
    return sum(max(run_s[n], copy_s[(n + 1) % cycles], read_s[(n + 2) % cycles]) for n in range(cycles))
