"""The heat watch reads recorded sensors, and only while there is a bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded_sensors import NoNvml, Recording, celsius, write, zone
from tenant_server import until

from split_infer_ros.server.improving import heat_watch
from split_infer_ros.server.improving.heat_watch import HeatWatch
from split_infer_ros.telemetry.heat import Heat, Processor
from split_infer_ros.telemetry.sensors import Reading, Sensors


class Watched:
    """A heat watch with a bound that a test sets."""

    def __init__(self) -> None:
        self.bound_c = 0.0
        self.notes: list[tuple[Heat, Heat]] = []
        self.watch = HeatWatch(lambda: self.bound_c, lambda before, heat: self.notes.append((before, heat)))


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(heat_watch, "PERIOD_S", 0.005)
    found = Watched()
    yield found
    found.watch.stop()


def test_without_a_bound_no_sensor_is_looked_for(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_watch.Sensors, "find", lambda: pytest.fail("sensors were looked for"))
    before = threading.enumerate()
    watched.watch.start()
    assert threading.enumerate() == before
    assert watched.notes == []


def test_files_of_a_board_make_it_hot_and_cool(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sensors = Sensors.find(write(tmp_path, zone(0, "cpu-thermal", 91_000)), NoNvml())
    monkeypatch.setattr(heat_watch.Sensors, "find", lambda: sensors)
    watched.bound_c = 90.0
    watched.watch.start()
    until(lambda: watched.watch.heat.hot is Processor.CPU)
    write(tmp_path, zone(0, "cpu-thermal", 84_900))
    until(lambda: watched.watch.heat.hot is None)
    changes = [(before.hot, heat.hot) for before, heat in watched.notes if before.hot is not heat.hot]
    assert changes == [(None, Processor.CPU), (Processor.CPU, None)]


def test_a_bound_that_is_taken_away_cools_at_once(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_watch.Sensors, "find", lambda: Recording(95.0))
    watched.bound_c = 90.0
    watched.watch.start()
    until(lambda: watched.watch.heat.hot is Processor.CPU)
    watched.bound_c = 0.0
    until(lambda: watched.watch.heat == Heat())
    until(lambda: "heat" not in {thread.name for thread in threading.enumerate()})
    watched.bound_c = 90.0
    watched.watch.start()
    until(lambda: watched.watch.heat.hot is Processor.CPU)


def test_a_sensor_that_raises_ends_nothing(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Recording] = []

    def find() -> Recording:
        if not found:
            found.append(Recording(95.0))
            raise RuntimeError("a library that is broken")
        return found[0]

    monkeypatch.setattr(heat_watch.Sensors, "find", find)
    watched.bound_c = 90.0
    watched.watch.start()
    until(lambda: watched.watch.heat.hot is Processor.CPU)


def test_a_stopped_watch_can_start_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_watch.Sensors, "find", lambda: Recording(60.0))
    watched.bound_c = 90.0
    watched.watch.start()
    watched.watch.start()  # which changes nothing
    until(lambda: bool(watched.notes))
    watched.watch.stop()
    found = len(watched.notes)
    watched.watch.start()
    until(lambda: len(watched.notes) > found)


def test_a_sensor_that_hangs_delays_no_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, may_answer = threading.Event(), threading.Event()

    class Hanging:
        def read(self) -> list[Reading]:
            asked.set()
            may_answer.wait()
            return [celsius("cpu-thermal", 95.0)]

    monkeypatch.setattr(heat_watch.Sensors, "find", Hanging)
    monkeypatch.setattr(heat_watch, "JOIN_S", 0.01)
    watched.bound_c = 90.0
    before = threading.enumerate()
    watched.watch.start()
    asked.wait()
    (thread,) = [each for each in threading.enumerate() if each not in before]
    watched.watch.stop()
    may_answer.set()
    thread.join()
    assert watched.watch.heat == Heat(), "what it answers later does not count"
