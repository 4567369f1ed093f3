"""Turns of a half's passes, of those of two that are to be alike, and of reading alone."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import _layering_child as child
import torch

SETTLE_S = 0.1  # after a pass its reader goes on until the ring is full


def passes(half: child.Half, images: torch.Tensor, count: int) -> list[float]:
    """Seconds of each of some passes in a row."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        half(images)
        found.append(time.perf_counter() - start)
    return found


def over_resident(
    resident: child.Half,
    chosen: child.Half,
    reading: Callable[[], None],
    images: torch.Tensor,
    count: int,
    seconds: float,
) -> tuple[float, float]:
    """By what part a half's delay exceeds resident's, and by what part that of resident weights with reading beside it.

    The second is what reading takes of the machine, whoever reads: nothing is handed over. Medians over turns of so
    many passes, for so long.
    """
    found: list[list[float]] = []
    with ThreadPoolExecutor(1) as executor:

        def beside(given: torch.Tensor) -> Sequence[torch.Tensor]:
            done = executor.submit(reading)
            try:
                return resident(given)
            finally:
                done.result()

        ways = [resident, chosen, beside]
        end = time.monotonic() + seconds
        while not found or time.monotonic() < end:
            first = len(found) % len(ways)  # none always comes right behind the same one
            delays = {way: statistics.median(passes(way, images, count)[1:]) for way in ways[first:] + ways[:first]}
            found.append([delays[way] / delays[resident] - 1 for way in (chosen, beside)])
    over, reading_beside = map(statistics.median, zip(*found, strict=True))
    return over, reading_beside


class Disk:
    """Reads all weights and does nothing else.

    Attributes:
        core_s: seconds of a core that each read took.
    """

    def __init__(self, contents: child.Contents) -> None:
        self._nbytes = sum(contents.sizes)
        self._reading = child.reading(contents)
        self.core_s: list[float] = []
        self._before = 0.0
        self.read()

    def read(self) -> float:
        """Bytes a second, the mean of this read and the one before, between which something was measured."""
        time.sleep(SETTLE_S)
        start, core_s = time.perf_counter(), time.thread_time()
        self._reading()
        speed = self._nbytes / (time.perf_counter() - start)
        self.core_s.append(time.thread_time() - core_s)
        before, self._before = self._before, speed
        return (before + speed) / 2
