"""Several cameras are watched at the same time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("rclpy")

from benchmarks.ros import together
from benchmarks.ros.together import Together


class Clock:
    """A clock on which made-up detections arrive while somebody sleeps."""

    def __init__(self, *cameras: list[tuple[float, float]]) -> None:
        self.now = 0.0
        self.arrivals = [Camera(self, given) for given in cameras]

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Camera:
    def __init__(self, clock: Clock, given: list[tuple[float, float]]) -> None:
        self.clock, self.given = clock, given

    @property
    def count(self) -> int:
        return sum(at <= self.clock.now for at, _ in self.given)

    def since(self, count: int) -> list[tuple[float, float]]:
        return [each for each in self.given if each[0] <= self.clock.now][count:]

    def wait_for(self, count: int) -> None:
        self.clock.now = max(self.clock.now, self.given[count - 1][0])


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    def made(*cameras: list[tuple[float, float]]) -> tuple[Clock, Together]:
        clock = Clock(*cameras)
        monkeypatch.setattr(together, "time", clock)
        return clock, Together(clock.arrivals)  # type: ignore[arg-type]

    return made


def test_what_arrives_is_told_by_camera(watch) -> None:
    clock, both = watch([(0.5, 0.9), (1.5, 0.1), (2.5, 0.2)], [(2.0, 0.3), (9.0, 0.4)])
    clock.now = 1.0
    found = both.during(2.0)
    assert (found.ages, found.seconds) == ([[0.1, 0.2], [0.3]], 2.0)
    assert (found.all_ages, found.frames_hz) == ([0.1, 0.2, 0.3], 1.5)


def test_few_arrivals_are_waited_for_and_none_are_an_error(watch) -> None:
    _, both = watch([(5.0, 0.1)], [(1.0, 0.2), (2.0, 0.3)])
    assert both.during(1.0).seconds == pytest.approx(5.0, abs=0.01)
    with pytest.raises(RuntimeError, match="Hardly anything of the 2 cameras"):
        both.during(1.0)


def test_each_camera_has_an_arrival_before_it_is_watched(watch) -> None:
    clock, both = watch([(0.2, 0.1)], [(3.0, 0.1)])
    both.settle(0.5)
    assert clock.now == 3.0


@pytest.mark.parametrize(("oldest_s", "until"), [(0.0, 0.3), (1.0, 2.2)])
def test_quiet_lasts_longer_if_results_are_late(oldest_s: float, until: float, watch) -> None:
    clock, both = watch([(0.1, 0.1)], [(0.18, 0.1), (0.7, 0.1)])
    both.wait_for_quiet(oldest_s)
    assert clock.now == pytest.approx(until, abs=0.02)
