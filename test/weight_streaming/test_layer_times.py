"""What is told to the predictor is what a partition does when nobody disturbs it."""

from __future__ import annotations

import pytest
import torch

from split_infer_ros.weight_streaming.delay_model import Machine, predict
from split_infer_ros.weight_streaming.layer_times import time_layers, time_model
from split_infer_ros.weight_streaming.packed_file import PAGE
from split_infer_ros.weight_streaming.ring import RingPlan
from split_infer_ros.weight_streaming.streamed_partition import PassTimes
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats


class Simulated:
    """A partition whose passes take as long as written down: steps, rest, bytes and seconds of reading."""

    def __init__(self, *passes: tuple[tuple[float, ...], float, int, float]) -> None:
        self._left = list(passes)
        self._bytes, self._reading_s = 0, 0.0
        self.times: PassTimes | None = None

    def __call__(self, images: torch.Tensor) -> None:
        steps, rest, count, seconds = self._left.pop(0)
        self.times = PassTimes(steps, rest, 0.0)
        self._bytes, self._reading_s = self._bytes + count, self._reading_s + seconds

    def stats(self) -> PrefetchStats:
        return PrefetchStats(0, self._bytes, self._reading_s, 0.0)


class Player:
    """A partition that waits as the predictor has it for a machine, all of whose bytes are read in each pass."""

    def __init__(self, plan: RingPlan, machine: Machine) -> None:
        self.plan, self._machine, self.closed, self._passes = plan, machine, False, 0
        self.times = PassTimes(machine.steps, machine.rest, predict(plan, machine) - machine.compute)

    def __call__(self, images: torch.Tensor) -> None:
        self._passes += 1

    def stats(self) -> PrefetchStats:
        count = self._passes * sum(portion.nbytes for portion in self.plan.portions)
        return PrefetchStats(0, count, count / self._machine.bandwidth, 0.0)

    def close(self) -> None:
        self.closed = True


def test_the_shortest_times_count_and_the_first_pass_does_not() -> None:
    partition = Simulated(((0.1, 0.1), 0.1, 100, 0.1), ((3.0, 1.0), 2.0, 100, 4.0), ((2.0, 5.0), 3.0, 100, 2.0))
    machine = time_layers(partition, [torch.zeros(1)], 3)  # type: ignore[arg-type]
    assert (machine.steps, machine.rest, machine.bandwidth) == ((2.0, 1.0), 2.0, 37.5)


def test_what_a_read_takes_besides_is_found_with_the_smallest_ring() -> None:
    """Blocks of two pages and steps of a second; what is waited for with the smallest ring is a hand-over's time."""
    sizes, uses = [2 * PAGE] * 3, [0, 1, 2]
    made: list[Player] = []

    def make(plan: RingPlan) -> Player:
        made.append(Player(plan, Machine((1.0, 1.0, 1.0), 0.0, 2.0 * PAGE, 0.25)))
        return made[-1]

    machine = time_model(make, sizes, uses, [torch.zeros(1)], 3)  # type: ignore[arg-type, return-value]
    assert machine.steps == (1.0, 1.0, 1.0)
    assert machine.bandwidth == 2.0 * PAGE
    assert machine.latency == pytest.approx(0.25, rel=1e-3)
    assert [player.closed for player in made] == [True, True]
    assert [player.plan.capacity for player in made] == [4 * PAGE, 2 * PAGE]
