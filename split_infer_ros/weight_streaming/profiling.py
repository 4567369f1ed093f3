"""Measures the streaming profile of a partition: the speed of its layers and of its disk while it streams weights."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing

from torch import Tensor

from split_infer_ros.weight_streaming.delay_model import StreamingProfile, fit_latency
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

ROOMY = 2  # smallest rings in a roomy one: one block is read while another is used


def profile_partition(
    open_partition: Callable[[MemoryPlan], StreamedPartition],
    block_sizes: Sequence[int],
    step_blocks: Sequence[int],
    *,
    inputs: Sequence[Tensor],
    passes: int,
    is_copied: bool = False,
) -> StreamingProfile:
    """Times the steps of a partition, its reads and its copies, in two runs.

    The first run has a ring of twice the smallest size, and gives all but the latency of a read. The second run has the
    smallest ring. Its waits for weights give the latency.

    Args:
        open_partition: opens the partition with a memory plan. This function closes it.
        block_sizes: the partition's block sizes, as for ``plan_ring``.
        step_blocks: the block of each step, as for ``plan_ring``.
        inputs: the partition's inputs in every pass.
        passes: number of passes with each ring, at least two. The first one does not count.
        is_copied: as for ``plan_memory``.
    """
    smallest = plan_memory(Residency.TWO_STAGE, block_sizes, step_blocks, is_copied=is_copied)
    roomy_bytes = ROOMY * smallest.ring_bytes
    roomy = plan_memory(Residency.ASYNCHRONOUS, block_sizes, step_blocks, budget_bytes=roomy_bytes, is_copied=is_copied)
    with closing(open_partition(roomy)) as partition:
        profile = profile_layers(partition, inputs, passes)
    with closing(open_partition(smallest)) as partition:
        stalled_s = measure_stall(partition, inputs, passes)
    return fit_latency(profile, smallest, profile.compute_s + stalled_s)


def profile_layers(partition: StreamedPartition, inputs: Sequence[Tensor], passes: int) -> StreamingProfile:
    """Runs passes. Returns the shortest time of each step and the median bandwidths; the read latency is 0.

    The shortest time excludes delays by other programs. Comparing weights with their checksums counts as reading.

    Args:
        partition: the partition to run.
        inputs: the partition's inputs in every pass.
        passes: number of passes, at least two. The first one does not count.
    """
    times, bandwidths, copy_bandwidths = [], [], []
    for number in range(passes):
        before = partition.stats()
        partition(*inputs)
        after = partition.stats()
        if number and partition.times is not None:
            times.append(partition.times)
            busy_s = after.reading_s + after.checking_s - before.reading_s - before.checking_s
            bandwidths.append(_rate(after.bytes_read - before.bytes_read, busy_s))
            copied = after.bytes_copied - before.bytes_copied
            copy_bandwidths.append(_rate(copied, after.copying_s - before.copying_s))
    return StreamingProfile(
        step_s=tuple(map(min, zip(*(each.step_s for each in times), strict=True))),
        tail_s=min(each.tail_s for each in times),
        bandwidth=statistics.median(bandwidths),
        copy_bandwidth=statistics.median(copy_bandwidths),
    )


def measure_passes(partition: StreamedPartition, inputs: Sequence[Tensor], passes: int) -> list[float]:
    """Returns the seconds of each pass, waits for weights included. The first pass does not count."""
    seconds = []
    for number in range(passes):
        partition(*inputs)
        if number and partition.times is not None:
            seconds.append(sum(partition.times.step_s) + partition.times.tail_s + partition.times.stalled_s)
    return seconds


def _rate(nbytes: int, seconds: float) -> float:
    """Returns bytes a second; infinite if nothing was moved."""
    return nbytes / seconds if seconds else math.inf


def measure_stall(partition: StreamedPartition, inputs: Sequence[Tensor], passes: int) -> float:
    """Returns the seconds that a pass waits for weights, as a median. The first pass does not count."""
    stalls = []
    for number in range(passes):
        partition(*inputs)
        if number and partition.times is not None:
            stalls.append(partition.times.stalled_s)
    return statistics.median(stalls)
