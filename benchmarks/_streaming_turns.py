"""Ways to have a model's weights, which take turns, and how fast a disk reads alone before and after them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

import _layering_child as child
from torch import Tensor

from split_infer_ros.telemetry.turns import rotated
from split_infer_ros.telemetry.usage import Usage

GROUP_S = 0.2  # of the passes that count in a turn: at least one
SETTLE_S = 0.1  # after a pass its reader goes on until the ring is full
READ_B_S, READ_CORE_S = "read, bytes a second", "read, seconds of a core"


def pass_s(partition: child.Half, images: Tensor, before: int) -> float:
    """Seconds of the median pass of a short group in a row; the passes before bring its reader into step."""
    found: list[float] = []
    for _ in range(before):
        partition(images)
    while not found or sum(found) < GROUP_S:
        start = time.perf_counter()
        partition(images)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def beside(partition: child.Half, reading: Callable[[], None], executor: Executor) -> child.Half:
    """The same partition; during each of its passes a thread reads all weights in vain."""

    def run(images: Tensor) -> Sequence[Tensor]:
        done = executor.submit(reading)
        try:
            return partition(images)
        finally:
            done.result()

    return run


class Disk:
    """Reads all weights and does nothing else."""

    def __init__(self, contents: child.Contents) -> None:
        self._nbytes = sum(contents.sizes)
        self._reading = child.reading(contents)

    def read(self) -> tuple[float, float]:
        """Bytes a second, and seconds of a core that the read took."""
        time.sleep(SETTLE_S)
        start, core_s = time.perf_counter(), time.thread_time()
        self._reading()
        return self._nbytes / (time.perf_counter() - start), time.thread_time() - core_s


class Residencies:
    """A turn of each way, between two reads of the disk, whose bandwidth changes from one second to the next.

    Args:
        halves: what runs the model, by way.
        before: passes of each way in a turn that do not count.
        images: that all run on.
        disk: read before and after.

    Attributes:
        names: of the ways.
        usage: of this process in the turns of each way.
    """

    def __init__(
        self, partitions: Mapping[str, child.Half], before: Mapping[str, int], images: Tensor, disk: Disk
    ) -> None:
        self._partitions, self._before, self._images, self._disk = partitions, before, images, disk
        self.names = list(partitions)
        self.usage = Usage()

    def turn(self, number: int) -> dict[str, float]:
        """Seconds of a pass by way; and what the disk did meanwhile, by ``READ_B_S`` and ``READ_CORE_S``."""
        found = {}
        before = self._disk.read()
        for way in rotated(self.names, number):
            with self.usage.of(way):
                found[way] = pass_s(self._partitions[way], self._images, self._before[way])
        pairs = zip(before, self._disk.read(), strict=True)
        found[READ_B_S], found[READ_CORE_S] = map(statistics.mean, pairs)
        return found
