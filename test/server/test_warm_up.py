"""The trial of lanes, with times that the test chooses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import accumulate, chain, repeat
from types import SimpleNamespace
from typing import Any, cast

import pytest

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.runtime.device import CPU
from split_infer_ros.server import warm_up
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.warm_up import MAX_TRIAL_S, TRIALS, WarmUp

WHOLE_S = 0.1  # of a batch on all cores


class CountedPlan:
    """A plan whose blank batches are counted."""

    may_use_lanes = True

    def __init__(self) -> None:
        self.batches = 0
        self._lock = threading.Lock()

    def warm_up(self, stream: object, copy_stream: object) -> None:
        with self._lock:
            self.batches += 1


def clock(seconds: Iterator[float]) -> Iterator[float]:
    """Yields the moments of a clock that is read before and after each of these times."""
    return accumulate(chain.from_iterable((0.0, each) for each in seconds))


def tried(
    monkeypatch: pytest.MonkeyPatch, seconds: list[float], engine: Engine = Engine.ONNXRUNTIME
) -> tuple[bool, int]:
    """Returns what the trial finds if its runs take so long, and how many blank batches it ran."""
    moments = clock(iter(seconds))
    monkeypatch.setattr(warm_up, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    monkeypatch.setattr(warm_up, "max_threads", lambda: 2)
    model = SimpleNamespace(execution_config=ExecutionConfig(engine=engine), device=CPU)
    plan = CountedPlan()
    found = WarmUp(cast(Any, model), 0, 2).lanes_serve_more(cast(Plan, plan))
    assert next(moments, None) is None, "the trial ended early"
    return found, plan.batches


def test_one_turn_is_enough_where_lanes_serve_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(monkeypatch, [WHOLE_S, 1.9 * WHOLE_S]) == (True, 3)


def test_lanes_of_torch_are_warmed_up_first(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(monkeypatch, [WHOLE_S, 9.0, 1.9 * WHOLE_S], Engine.TORCH) == (True, 5)


def test_a_disturbed_turn_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(monkeypatch, [WHOLE_S, 3 * WHOLE_S, WHOLE_S, 1.9 * WHOLE_S]) == (True, 6)


@pytest.mark.parametrize(("times", "found"), [(2.1, True), (2.5, False)])
def test_lanes_may_be_a_little_slower(monkeypatch: pytest.MonkeyPatch, times: float, found: bool) -> None:
    turns = [*repeat([times * WHOLE_S, WHOLE_S], TRIALS)]
    assert tried(monkeypatch, [WHOLE_S, *chain.from_iterable(turns)]) == (found, 1 + 3 * TRIALS)


def test_lanes_of_a_slow_model_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tried(monkeypatch, [1.1 * MAX_TRIAL_S]) == (False, 1)
