"""Simulates passes on a memory plan, to predict their delay from sizes and times of the layers.

A chunk is read as soon as its part of the ring is free. With three stages, a block is then copied as soon as its place
on the device is free. A layer runs as soon as its weights are there (paper: asynchronous and two-stage pipelines). In
lockstep, all stages begin their next block together (paper: synchronous pipeline). The module is pure: numbers in,
seconds out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.ring_plan import RingPlan

PASSES = 4  # after the first passes, each pass is like the one before
BISECTIONS = 20


@dataclass(frozen=True, slots=True)
class StreamingProfile:
    """Measured speed of a partition's layers, and of what brings their weights.

    Attributes:
        step_s: seconds of each step.
        tail_s: seconds after the last step.
        bandwidth: of reading, bytes a second.
        read_latency_s: extra seconds of each read, including the hand-over from prefetcher to layer.
        copy_bandwidth: of copying blocks to the device, bytes a second; infinite if nothing is copied.
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
        """Returns the seconds of reading each chunk of a plan."""
        return [self.read_latency_s + chunk.nbytes / self.bandwidth for chunk in plan.chunks]

    def copy_s(self, plan: RingPlan) -> list[float]:
        """Returns the seconds of copying each chunk of a plan."""
        return [chunk.nbytes / self.copy_bandwidth for chunk in plan.chunks]


def predict_delay(memory_plan: MemoryPlan, profile: StreamingProfile) -> float:
    """Returns the seconds of a pass in a series of passes. Each pass reads ahead for the next one's first layers."""
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
        profile: without latency. It is returned unchanged if it predicts at least ``delay_s``.
        memory_plan: of a ring so small that layers wait for reads.
        delay_s: measured seconds of a pass with that plan.
    """
    if predict_delay(memory_plan, profile) >= delay_s:
        return profile
    low, high = 0.0, delay_s / len(memory_plan.ring.chunks)  # with the upper bound, latency alone fills the pass
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
        plan: of the ring.
        fill_s: seconds of each chunk.
    """

    def __init__(self, plan: RingPlan, fill_s: Sequence[float]) -> None:
        self.plan = plan
        self._fill_s = fill_s
        self.done_at: list[float] = []  # when each chunk was there; chunks count over all passes
        self._free_at: list[float] = []  # when each chunk's part of the ring became free

    @property
    def has_room(self) -> bool:
        """True if it is known when the next chunk's part of the ring becomes free."""
        return self._overwritten < len(self._free_at)

    def fill(self, not_before: float = 0.0) -> None:
        """Fills the next chunk once its part is free, the chunk before is done, and ``not_before`` is reached."""
        begin = max(not_before, self.done_at[-1] if self.done_at else 0.0)
        if self._overwritten >= 0:
            begin = max(begin, self._free_at[self._overwritten])
        self.done_at.append(begin + self._fill_s[len(self.done_at) % len(self._fill_s)])

    def free(self, count: int, now: float) -> None:
        """Notes that the first ``count`` chunks are no longer needed."""
        self._free_at.extend([now] * (count - len(self._free_at)))

    @property
    def _overwritten(self) -> int:
        """The last chunk that must be free before the next one is filled; negative if there is none."""
        chunk = len(self.done_at)
        return chunk - self.plan.window[chunk % len(self.plan.window)] - 1


def _read(reads: _RingStage, passes: int) -> None:
    """Reads as much of the first passes as there is room for."""
    while len(reads.done_at) < passes * len(reads.plan.chunks) and reads.has_room:
        reads.fill()


def _copy(copies: _RingStage, reads: _RingStage, block_ends: Sequence[int], passes: int) -> None:
    """Reads and copies as many blocks of the first passes as there is room for.

    Args:
        copies: of blocks to the device.
        reads: of chunks to the host. A block that was copied gives its place there to another one.
        block_ends: for each block, how many chunks there are up to its end.
        passes: how many.
    """
    while len(copies.done_at) < passes * len(block_ends) and copies.has_room:
        number, block = divmod(len(copies.done_at), len(block_ends))
        end = number * len(reads.plan.chunks) + block_ends[block]
        while len(reads.done_at) < end:  # there is room, because all blocks before were copied
            reads.fill()
        copies.fill(not_before=reads.done_at[end - 1])
        reads.free(end, copies.done_at[-1])


def _run_passes(profile: StreamingProfile, stage: _RingStage, fill: Callable[[int], None]) -> float:
    """Returns the seconds of the last of some passes.

    Args:
        profile: of the layers.
        stage: whose ring the layers read.
        fill: fills as much of that ring for the first passes as there is room for.
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
    """Returns the sum of a pass's cycles. In each, a block runs, the next is copied, and the one after it is read.

    An odd number of blocks has an empty cycle at its end, so that buffers alternate across passes as well.
    """
    empty = [0.0] * (len(ring.chunks) % 2)
    run_s = [0.0] * len(ring.chunks) + empty
    for needed, seconds in zip(ring.chunks_needed, profile.step_s, strict=True):
        run_s[max(needed, 1) - 1] += seconds
    run_s[0] += profile.tail_s  # the cycle of the first block has begun when the pass before ends
    copy_s, read_s = profile.copy_s(ring) + empty, profile.read_s(staging) + empty
    cycles = len(run_s)
    return sum(max(run_s[n], copy_s[(n + 1) % cycles], read_s[(n + 2) % cycles]) for n in range(cycles))
