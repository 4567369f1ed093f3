"""Two batches side by side on lanes of a CPU: results keep their order, and a batch that fails holds up no other."""

from __future__ import annotations

import math
import random
import threading
import time
from typing import Any

import pytest
from brightness_models import LONG_S
from two_stages import Start

from split_infer_ros.errors import SplitInferError
from split_infer_ros.server import lane_use, warm_up
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.schedule.lane_rule import LaneRule
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.server.warm_up import NUM_LANES

COUNT = 60


class SlowPlan:
    """Stands in for ``Plan.run``: batches take a drawn time, and some fail; counts how many run at the same time."""

    def __init__(self, fails: set[int]) -> None:
        self.most = 0
        self._fails = fails
        self._random = random.Random(0)
        self._lock = threading.Lock()
        self._running = self._begun = 0
        self._run = Plan.run

    def run(self, plan: Plan, *args: Any, **options: Any) -> Any:
        with self._lock:
            number, seconds = self._begun, self._random.uniform(0.0, 0.006)
            self._begun += 1
            self._running += 1
            self.most = max(self.most, self._running)
        try:
            time.sleep(seconds)
            if number in self._fails:
                raise SplitInferError(f"Batch {number} fails.")
            return self._run(plan, *args, **options)
        finally:
            with self._lock:
                self._running -= 1


@pytest.fixture
def on_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes are always used, whatever this machine is and whatever the tests' threads are."""
    monkeypatch.setattr(warm_up, "count_lanes", lambda model, num_lanes: NUM_LANES)
    monkeypatch.setattr(lane_use, "MISSED", 1)
    monkeypatch.setattr(lane_use, "MISSED_S", 0.0)
    monkeypatch.setattr(LaneScheduler, "lanes_pay", lambda scheduler, model, limit: True)
    monkeypatch.setattr(LaneRule, "wants_lanes", lambda rule, now, is_idle: True)


@pytest.mark.usefixtures("on_lanes")
@pytest.mark.parametrize("fails", [set(), {0, 7, 8, 31}], ids=["none fails", "some fail"])
def test_batches_side_by_side_keep_their_order(start: Start, monkeypatch: pytest.MonkeyPatch, fails: set[int]) -> None:
    pipeline = start(drop_policy=DropPolicy.BLOCK, lane_limit=math.inf)
    slow = SlowPlan(fails)
    monkeypatch.setattr(Plan, "run", lambda plan, *args, **options: slow.run(plan, *args, **options))
    for value in range(COUNT):
        assert pipeline.backbone.intake.wait_for_room(LONG_S)
        pipeline.send(value)
    pipeline.settle()
    pipeline.check_results()
    headers = [origin.header for origin, _ in pipeline.delivered]
    assert headers == sorted(headers)
    assert len(headers) == COUNT - len(fails)
    assert slow.most == NUM_LANES
    assert pipeline.backbone.ledger.counts().dropped == ({"backbone_error": len(fails)} if fails else {})
    assert len(pipeline.errors) == len(fails)


@pytest.mark.usefixtures("on_lanes")
def test_stop_finishes_what_lanes_compute(start: Start) -> None:
    pipeline = start(drop_policy=DropPolicy.BLOCK, lane_limit=math.inf)
    for value in range(5):
        assert pipeline.backbone.intake.wait_for_room(LONG_S)
        pipeline.send(value)
    pipeline.backbone.stop(LONG_S)
    assert [origin.header for origin, _ in pipeline.delivered] == list(range(5))
    pipeline.delivered.clear()
    pipeline.backbone.start()
    pipeline.send(9)
    pipeline.settle()
    assert [origin.header for origin, _ in pipeline.delivered] == [9]


@pytest.mark.usefixtures("on_lanes")
def test_settings_without_lanes_compute_one_batch_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = start(drop_policy=DropPolicy.BLOCK)
    slow = SlowPlan(set())
    monkeypatch.setattr(Plan, "run", lambda plan, *args, **options: slow.run(plan, *args, **options))
    for value in range(COUNT):
        assert pipeline.backbone.intake.wait_for_room(LONG_S)
        pipeline.send(value)
    pipeline.settle()
    assert slow.most == 1
