"""What is told to the predictor is what a half does when nobody disturbs it."""

from __future__ import annotations

import torch

from split_infer_ros.layering.streamed import PassTimes
from split_infer_ros.layering.timing import time_layers
from split_infer_ros.layering.track import ReaderStats


class Played:
    """A half whose passes take as long as written down: steps, rest, bytes and seconds of reading."""

    def __init__(self, *passes: tuple[tuple[float, ...], float, int, float]) -> None:
        self._left = list(passes)
        self._bytes, self._reading_s = 0, 0.0
        self.times: PassTimes | None = None

    def __call__(self, images: torch.Tensor) -> None:
        steps, rest, count, seconds = self._left.pop(0)
        self.times = PassTimes(steps, rest, 0.0)
        self._bytes, self._reading_s = self._bytes + count, self._reading_s + seconds

    def stats(self) -> ReaderStats:
        return ReaderStats(0, self._bytes, self._reading_s, 0.0)


def test_the_shortest_times_count_and_the_first_pass_does_not() -> None:
    half = Played(((0.1, 0.1), 0.1, 100, 0.1), ((3.0, 1.0), 2.0, 100, 4.0), ((2.0, 5.0), 3.0, 100, 2.0))
    machine = time_layers(half, torch.zeros(1), 3)  # type: ignore[arg-type]
    assert (machine.steps, machine.rest, machine.bandwidth) == ((2.0, 1.0), 2.0, 50.0)
