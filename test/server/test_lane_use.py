"""When lanes are prepared, for which plans, and what happens if they cannot be or do not pay."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from tenant_server import until

from split_infer_ros.server.lane_use import MISSED, MISSED_S, LaneUse
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.planner import Objective
from split_infer_ros.split.split_points import SplitPoint


class Network:
    """Stands in for what a plan runs."""


NETWORK: Any = Network()


def plan_of(lane_limit: float = Objective.BALANCED.latency_limit) -> Plan:
    given: dict[str, Any] = dict.fromkeys(("backbone", "preprocessor", "memory"))
    point = SplitPoint("output", (), 0, ())
    settings, pool = StageSettings(lane_limit=lane_limit), cast(Any, object())
    return Plan(
        model=NETWORK,
        split_point=point,
        settings=settings,
        pool=pool,
        memory_reason="",
        weight_bytes=0,
        warm_up_sizes=(),
        **given,
    )


class Model:
    """A model without anything to compute. It stands in for an instance and for its warm-up.

    Attributes:
        prepared: the plans for which lanes were prepared.
        said: what users read.
        num_ready: how often lanes became ready.
    """

    key = "one"

    def __init__(self, *, tries: bool = True, prepares_lanes: bool = True, fails: bool = False) -> None:
        self._prepares_lanes = prepares_lanes
        self.plan = plan_of()
        self.prepared: list[Plan] = []
        self.said: list[str] = []
        self.num_ready = 0
        self.gate = threading.Event()
        self.gate.set()
        self._fails = fails
        self._changed = threading.Condition()
        this = cast(Any, self)
        self.lanes = LaneUse(this, this, self._changed, ready=self._note_ready, on_error=self._say, tries=tries)

    def can_use_lanes(self, plan: Plan) -> bool:
        return True

    def prepares_lanes(self, plan: Plan) -> bool:
        return self._prepares_lanes

    def use(self, plan: Plan) -> None:
        self.plan = plan

    def run_on_lanes(self, plan: Plan) -> None:
        assert self.gate.wait(10.0)
        if self._fails:
            raise MemoryError("no room")
        self.prepared.append(plan)

    def begin(self, count: int, *, misses_lane: bool = True, every_s: float = MISSED_S, lanes_pay: bool = True) -> None:
        for index in range(count):
            with self._changed:
                self.lanes.note_batch(index * every_s, misses_lane=misses_lane, lanes_pay=lanes_pay)

    def _note_ready(self) -> None:
        self.num_ready += 1

    def _say(self, error: Exception) -> None:
        self.said.append(str(error))


def with_lanes(**options: bool) -> Model:
    model = Model(**options)
    model.begin(MISSED)
    until(lambda: model.lanes.may_be_used)
    return model


def test_lanes_are_prepared_once_batches_come_fast() -> None:
    model = Model()
    first = model.plan
    model.begin(MISSED - 1)
    assert not model.lanes.may_be_used
    model.begin(MISSED)
    until(lambda: model.lanes.may_be_used)
    assert model.prepared == [first]
    assert model.num_ready == 1
    model.begin(MISSED)
    assert model.prepared == [first], "once"


@pytest.mark.parametrize(
    "begin",
    [
        lambda model: [model.begin(count, misses_lane=not alone) for count, alone in ((MISSED - 1, 0), (1, 1)) * 3],
        lambda model: model.begin(MISSED, every_s=0.9 * MISSED_S / MISSED),
    ],
    ids=["some are alone", "a short burst"],
)
def test_lanes_are_not_prepared_for_a_few_batches(begin: Any) -> None:
    model = Model()
    begin(model)
    assert not [thread for thread in threading.enumerate() if thread.name == "prepare lanes"]
    assert model.prepared == []


def test_lanes_are_not_prepared_where_settings_have_none() -> None:
    model = Model()
    model.use(plan_of(lane_limit=1.0))
    model.begin(3 * MISSED)
    assert model.prepared == []


def test_batches_are_served_while_lanes_are_prepared() -> None:
    model = Model()
    model.gate.clear()
    model.begin(3 * MISSED)
    assert not model.lanes.may_be_used
    model.gate.set()
    until(lambda: model.lanes.may_be_used)
    assert len(model.prepared) == 1


def test_a_new_plan_has_lanes_if_the_plan_in_force_has_them() -> None:
    model, other = Model(), plan_of()
    assert model.lanes.follow(other) is other
    model = with_lanes()
    assert model.lanes.follow(other).has_lanes
    assert model.prepared[1:] == [other]


def test_lanes_that_were_prepared_for_an_earlier_plan_are_not_used() -> None:
    model = Model()
    model.gate.clear()
    model.begin(MISSED)
    model.use(plan_of())
    model.gate.set()
    until(lambda: len(model.prepared) == 1)
    assert not model.lanes.may_be_used
    assert model.num_ready == 0


@pytest.mark.parametrize("tries", [True, False])
def test_lanes_that_do_not_pay_are_given_up_unless_costs_are_measured(tries: bool) -> None:
    model = with_lanes(tries=tries)
    model.begin(1, lanes_pay=False)
    assert model.lanes.may_be_used is not tries
    assert model.lanes.follow(plan_of()).has_lanes is not tries


def test_lanes_that_cannot_be_prepared_are_said_once() -> None:
    model = Model(fails=True)
    model.begin(MISSED)
    until(lambda: bool(model.said))
    model.begin(3 * MISSED)
    assert not model.lanes.may_be_used
    assert model.said == ["one computes no two batches at the same time (no room)."]


def test_tenants_have_lanes_at_once_where_nothing_is_to_be_prepared() -> None:
    model = Model(tries=False, prepares_lanes=False)
    model.use(model.lanes.follow(model.plan))
    assert model.lanes.may_be_used


def test_lanes_are_tried_again_if_they_may_take_longer() -> None:
    model = with_lanes()
    model.begin(1, lanes_pay=False)
    assert not model.lanes.may_be_used
    model.use(plan_of(lane_limit=1.1))
    model.begin(3 * MISSED)
    assert not model.lanes.may_be_used
    model.use(plan_of(lane_limit=2.0))
    model.begin(MISSED)
    until(lambda: model.lanes.may_be_used)
