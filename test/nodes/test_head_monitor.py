"""How a backbone notices the death of its heads, and how it checks their releases."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.msg import FeatureRelease
from split_infer_ros.nodes.transports import head_monitor as module
from split_infer_ros.nodes.transports.head_monitor import HeadMonitor
from split_infer_ros.nodes.transports.messages import read_release, release_message


class SimulatedHeads:
    """A head monitor whose liveliness events and times the test decides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.deaths: list[float] = []
        self.subscribers = 0
        self._alive = self._silent = 0
        callbacks: dict[str, Any] = {}
        monkeypatch.setattr(
            module, "read_messages", lambda *_, name, on_liveliness: callbacks.update(on_liveliness=on_liveliness)
        )
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        self.heads = HeadMonitor(SimpleNamespace(), print, self.deaths.append)
        self._on_liveliness = callbacks["on_liveliness"]

    def change(self, now: float, alive: int = 0, silent: int = 0) -> None:
        """Changes the numbers of living and silent heads."""
        self.now = now
        self._alive += alive
        self._silent += silent
        self._on_liveliness(
            SimpleNamespace(
                alive_count=self._alive,
                alive_count_change=alive,
                not_alive_count=self._silent,
                not_alive_count_change=silent,
            )
        )

    @property
    def reached(self) -> int:
        return self.heads.count_reached(SimpleNamespace(get_subscription_count=lambda: self.subscribers))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> SimulatedHeads:
    return SimulatedHeads(monkeypatch)


def test_silent_head_loses_all_that_was_sent(simulated: SimulatedHeads) -> None:
    assert simulated.reached == 0
    simulated.change(1.0, alive=1)
    simulated.subscribers = 1
    assert simulated.reached == 1
    simulated.change(9.0, alive=-1, silent=1)
    assert simulated.deaths == [9.0]
    assert simulated.reached == 0  # though its subscription will be there for a while
    simulated.subscribers = 0
    simulated.change(27.0, silent=-1)
    assert simulated.deaths == [9.0]
    assert simulated.reached == 0


def test_batches_since_a_new_head_belong_to_it(simulated: SimulatedHeads) -> None:
    simulated.change(1.0, alive=1)
    simulated.change(7.0, alive=1)
    simulated.subscribers = 2
    simulated.change(8.0, alive=-1, silent=1)
    assert simulated.deaths == [7.0]
    assert simulated.reached == 1


def test_leaving_head_has_settled_its_batches(simulated: SimulatedHeads) -> None:
    simulated.change(1.0, alive=1)
    simulated.change(2.0, alive=-1)
    assert simulated.deaths == []


def test_head_time_needs_no_common_clock() -> None:
    lease = Lease(1, 2, 3)
    head_clock = 1e6  # another host's: it has been up for longer
    message = release_message(lease, Outcome(4, "head_error", head_clock, head_clock + 0.25, head_clock + 0.75))
    found, outcome = read_release(message, 50.0)
    assert found == lease
    assert outcome == Outcome(4, "head_error", 49.25, 49.5, 50.0)


@pytest.mark.parametrize("field", ["_head_s", "_postprocess_s"])
@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0])
def test_impossible_time_becomes_nan(field: str, seconds: float) -> None:
    message = FeatureRelease(published=1, reason="head_error")
    setattr(message, field, seconds)  # as it may come in; the setter would refuse some of these
    outcome = read_release(message, 50.0)[1]
    assert (outcome.published, outcome.reason) == (1, "head_error")
    assert math.isnan(outcome.head_start)


def test_unknown_reason_gets_its_own_name() -> None:
    assert read_release(FeatureRelease(reason="my own"), 1.0)[1].reason == "unknown_reason"
