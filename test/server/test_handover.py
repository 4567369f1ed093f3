"""The end of executions: batches are handed over in order, and one that fails costs no other."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from split_infer_ros.runtime.streams import Fence
from split_infer_ros.server.handover import Execution, Handover
from split_infer_ros.server.in_flight import InFlightBatch
from split_infer_ros.server.timeline import Timeline

LONG_S = 60.0


class Owner:
    """Notes what becomes of its batches."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.events: list[Any] = []

    def hand_over(self, batch: InFlightBatch) -> None:
        if self.fails:
            raise RuntimeError("no way to the head")
        self.events.append(batch)

    def fail(self, batch: InFlightBatch, error: Exception) -> None:
        self.events.append(str(error))


class Broken(Fence):
    def wait(self) -> None:
        raise RuntimeError("the device failed")


class Gate(Fence):
    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()

    def wait(self) -> None:
        assert self.open.wait(LONG_S)


def batch_of(owner: Owner) -> InFlightBatch:
    return cast(InFlightBatch, SimpleNamespace(owner=owner, timeline=Timeline()))


@pytest.fixture(params=[False, True], ids=["in_line", "behind"])
def handover(request: pytest.FixtureRequest) -> Handover:
    made = Handover(request.param)
    made.start()
    return made


def test_batches_are_handed_over_and_then_it_is_over(handover: Handover) -> None:
    owner, over = Owner(), []
    batches = [batch_of(owner), batch_of(owner)]
    handover.put(Execution(batches, 1.0, Fence(), lambda: over.append(len(owner.events))))
    handover.stop()
    assert owner.events == batches
    assert over == [2]


def test_one_that_fails_costs_no_other(handover: Handover) -> None:
    bad, good = Owner(fails=True), Owner()
    batches = [batch_of(bad), batch_of(good)]
    handover.put(Execution(batches, 1.0, Fence(), lambda: None))
    handover.stop()
    assert bad.events == ["no way to the head"]
    assert good.events == batches[1:]


def test_a_device_that_fails_costs_the_whole_execution(handover: Handover) -> None:
    owners, over = [Owner(), Owner()], []
    handover.put(Execution([batch_of(owner) for owner in owners], 1.0, Broken(), lambda: over.append(1)))
    handover.stop()
    assert [owner.events for owner in owners] == [["the device failed"]] * 2
    assert over == [1]


def test_an_execution_begins_when_the_one_before_has_ended(handover: Handover) -> None:
    first, second = batch_of(Owner()), batch_of(Owner())
    for batch in (first, second):
        handover.put(Execution([batch], 0.0, Fence(), lambda: None))
    handover.stop()
    assert first.timeline.backbone_start == 0.0
    assert second.timeline.backbone_start == first.timeline.backbone_end > 0.0


def test_a_device_behind_is_waited_for_on_another_thread() -> None:
    handover, owner, gate = Handover(True), Owner(), Gate()
    handover.start()
    handover.put(Execution([batch_of(owner)], 0.0, gate, lambda: None))
    assert owner.events == []
    gate.open.set()
    handover.stop()
    assert len(owner.events) == 1
