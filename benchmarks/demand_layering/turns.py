"""Runs turns of a model's residencies, and measures the disk's bandwidth before and after each turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from torch import Tensor

from benchmarks.common.turns import rotated
from benchmarks.common.usage import Usage
from benchmarks.demand_layering import child
from split_infer_ros.weight_streaming.packed_partition import PackedPartition

GROUP_S = 0.2  # how long the passes that count in a turn take together; at least one pass
SETTLE_S = 0.1  # after a pass, its prefetcher continues until the ring is full
READ_B_S, READ_CORE_S = "read, bytes a second", "read, seconds of a core"
READ_BEFORE_B_S, READ_AFTER_B_S = "read before the turn, bytes a second", "read after the turn, bytes a second"


def pass_s(partition: child.Partition, images: Tensor, passes_before: int, group_s: float | None = None) -> float:
    """Returns the median seconds of a pass, over a short group of passes in a row.

    Before the group, ``passes_before`` passes run that are not measured. They bring the prefetcher into step. The group
    takes at least ``group_s`` seconds; None: ``GROUP_S``.
    """
    group_s = GROUP_S if group_s is None else group_s
    times_s: list[float] = []
    for _ in range(passes_before):
        partition(images)
    while not times_s or sum(times_s) < group_s:
        start = time.perf_counter()
        partition(images)
        times_s.append(time.perf_counter() - start)
    return statistics.median(times_s)


def with_reads(partition: child.Partition, read: Callable[[], None], executor: Executor) -> child.Partition:
    """Returns the partition as a function. During each pass, a thread of ``executor`` reads all weights in vain."""

    def run(images: Tensor) -> Sequence[Tensor]:
        done = executor.submit(read)
        try:
            return partition(images)
        finally:
            done.result()

    return run


class Disk:
    """Reads all weights of a model while nothing else runs."""

    def __init__(self, packed: PackedPartition) -> None:
        self._nbytes = sum(packed.block_sizes)
        self._read = child.full_read(packed)

    def read(self) -> tuple[float, float]:
        """Reads all weights. Returns the bytes per second, and the seconds of a core that the read took."""
        time.sleep(SETTLE_S)
        start, core_start_s = time.perf_counter(), time.thread_time()
        self._read()
        return self._nbytes / (time.perf_counter() - start), time.thread_time() - core_start_s


class ResidencyTurns:
    """Runs turns. In a turn, each residency runs one group of passes. All weights are read before and after the turn.

    Two reads are needed, because the disk's bandwidth changes from one second to the next.

    Args:
        partitions: the partitions, by residency.
        passes_before: how many passes of each residency run before the measured passes of a turn.
        images: the images on which all residencies run.
        disk: reads all weights before and after each turn.

    Attributes:
        names: the names of the residencies.
        usage: this process's memory and processor time in the turns of each residency.
    """

    def __init__(
        self,
        partitions: Mapping[str, child.Partition],
        *,
        passes_before: Mapping[str, int],
        images: Tensor,
        disk: Disk,
    ) -> None:
        self._partitions, self._passes_before, self._images, self._disk = partitions, passes_before, images, disk
        self.names = list(partitions)
        self.usage = Usage()

    def turn(self, number: int) -> dict[str, float]:
        """Returns the seconds of a pass by residency, and the disk's figures by the names in capitals above."""
        figures = {}
        before = self._disk.read()
        for residency in rotated(self.names, number):
            with self.usage.of(residency):
                figures[residency] = pass_s(self._partitions[residency], self._images, self._passes_before[residency])
        after = self._disk.read()
        figures[READ_BEFORE_B_S], figures[READ_AFTER_B_S] = before[0], after[0]
        figures[READ_B_S], figures[READ_CORE_S] = map(statistics.mean, zip(before, after, strict=True))
        return figures
