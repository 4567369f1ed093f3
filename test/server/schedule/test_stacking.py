"""When requests of one architecture run as one network: on windows drawn by hand, and for whatever requests come."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.execution_costs import ExecutionCosts, StackCosts, combination_of
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler
from split_infer_ros.server.schedule.request import LatePolicy, Request
from split_infer_ros.server.schedule.scheduler import Decision, Rules, decide
from split_infer_ros.server.schedule.stacking import best_stacked_execution

STACK = "a + b + c"
# Three images one after the other take 3, six take 6. The models of x and y are others; x and y are fused well.
COSTS = ExecutionCosts(
    dict.fromkeys("abcxy", 1) | {"large": 99},
    {model: {1: 1.0, 2: 2.0} for model in "abcxy"} | {"large": {1: 9.0}},
    {combination_of({"x": 1, "y": 1}): 1.0},
    {STACK: StackCosts(("a", "b", "c"), {1: 1.5, 2: 2.6})},
)
RULES = Rules(window=6)


def queue_of(models: str, **deadlines_s: float) -> list[Request]:
    """One request for each letter, of a tenant of its own; deadlines by the letter."""
    return [
        Request(number, f"{model}{number}", model, arrival_s=0.0, deadline_s=deadlines_s.get(model, math.inf))
        for number, model in enumerate(models)
    ]


def served(decision: Decision) -> str:
    return "".join(sorted(f"{request.model}{request.number}" for request in decision.requests))


@pytest.mark.parametrize(
    ("models", "expected", "stack"),
    [
        ("abc", "a0b1c2", STACK),  # 1.5 in place of 3
        ("ab", "a0b1", STACK),  # 0.75 for each, with a blank image of c
        ("a", "a0", ""),
        ("aabbcc", "a0a1b2b3c4c5", STACK),  # 2.6 / 6 is less than 1.5 / 3
        ("aab", "a0b2", STACK),  # 1.5 / 2 is less than 2.6 / 3
        ("axb", "a0b2", STACK),
        ("xab", "x0", ""),  # the first request is always served
        ("xy", "x0y1", ""),
        ("abxyc", "a0b1c4", STACK),
    ],
)
def test_cheapest_execution_for_each_request_runs(models: str, expected: str, stack: str) -> None:
    decision = decide(queue_of(models), COSTS, now=0.0, rules=RULES)
    assert (served(decision), decision.stack) == (expected, stack)


def test_each_member_has_one_batch_in_order() -> None:
    decision = decide(queue_of("babcac"), COSTS, now=0.0, rules=RULES)
    found = {batch.model: [request.number for request in batch.requests] for batch in decision.batches}
    assert found == {"b": [0, 2], "a": [1, 4], "c": [3, 5]}


def test_stack_that_gains_nothing_is_not_used() -> None:
    for seconds, expected in ((2.0, "a0"), (1.9, "a0b1")):
        costs = replace(COSTS, stacks={STACK: StackCosts(("a", "b", "c"), {1: seconds})})
        assert served(decide(queue_of("ab"), costs, now=0.0, rules=RULES)) == expected
    fused = replace(COSTS, fused_s={combination_of({"a": 1, "b": 1}): 1.4})
    decision = decide(queue_of("ab"), fused, now=0.0, rules=RULES)
    assert (served(decision), decision.stack) == ("a0b1", ""), "each by its own network costs less"


def test_rules_bound_a_stack() -> None:
    one_each = decide(queue_of("aabbcc"), COSTS, now=0.0, rules=Rules(window=6, max_batch_size=1))
    assert (served(one_each), one_each.stack) == ("a0b2c4", STACK)
    assert decide(queue_of("abc"), COSTS, now=0.0, rules=Rules(stack=False)).stack == ""
    assert served(decide(queue_of("abc"), COSTS, now=0.0, rules=Rules(window=2))) == "a0b1"


@pytest.mark.parametrize(
    ("deadline_s", "late", "stack"),
    [
        (1.6, LatePolicy.FINISH, STACK),
        (1.2, LatePolicy.FINISH, ""),  # alone it meets its deadline
        (0.5, LatePolicy.FINISH, STACK),  # it is late in any case
        (1.2, LatePolicy.DROP, ""),
    ],
)
def test_no_request_misses_its_deadline_for_others(deadline_s: float, late: LatePolicy, stack: str) -> None:
    queue = queue_of("ab", b=deadline_s)
    queue[1] = replace(queue[1], when_late=late)
    assert decide(queue, COSTS, now=0.0, rules=RULES).stack == stack


@given(
    st.lists(st.tuples(st.sampled_from("abcxy"), st.integers(0, 2), st.floats(0.1, 9.0)), min_size=1, max_size=9),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_stacked_requests_are_the_first_of_their_models(
    rows: list[tuple[str, int, float]], window: int, max_batch_size: int
) -> None:
    queue = [
        Request(number, f"{model}{tenant}", model, arrival_s=0.0, deadline_s=deadline_s)
        for number, (model, tenant, deadline_s) in enumerate(rows)
    ]
    found = best_stacked_execution(queue[:window], COSTS, now=0.0, max_batch_size=max_batch_size)
    if found is None:
        return
    assert found.requests[0] is queue[0]
    for model in "abc":
        own = [request for request in queue[:window] if request.model == model]
        chosen = [request for request in found.requests if request.model == model]
        assert chosen == own[: len(chosen)]
        assert len(chosen) <= max_batch_size
    assert all(found.seconds <= each.deadline_s or each.deadline_s < 1.0 for each in found.requests)
    assert len({request.model for request in found.requests}) > 1


def test_lane_runs_a_stack_but_fuses_nothing() -> None:
    modes = ExecutionModes(COSTS, 2, replace(COSTS, stacks={STACK: StackCosts(("a", "b", "c"), {1: 1.2})}))
    modes.__dict__["lanes_serve_more"] = True
    scheduler = LaneScheduler(2)
    scheduler.begin(scheduler.choose(queue_of("y"), modes, now=0.0, rules=RULES), 0.0)
    execution = scheduler.choose(queue_of("abc"), modes, now=0.0, rules=RULES)
    if execution.lane is None:  # all cores ran the first request
        pytest.fail("the second execution is on a lane")
    assert (execution.decision.stack, execution.seconds) == (STACK, 1.2)


def test_stack_counts_for_the_choice_of_the_execution_mode() -> None:
    """Lanes serve three images in 3 / 2 x 0.9 = 1.35; the stack on all cores in 1.2."""
    lane = ExecutionCosts(COSTS.parameters, {model: {1: 0.9 * 2} for model in COSTS.alone_s})
    assert not ExecutionModes(COSTS, 2, replace(lane, alone_s={"a": {1: 1.8}})).lanes_serve_more
    assert ExecutionModes(replace(COSTS, stacks={}), 2, replace(lane, alone_s={"a": {1: 1.8}})).lanes_serve_more
    modes = ExecutionModes(COSTS, 2, lane)
    assert modes.all_cores_finish_sooner(queue_of("abc"))
    assert not replace(modes, whole=replace(COSTS, stacks={})).all_cores_finish_sooner(queue_of("ab"))


def test_costs_of_a_stack() -> None:
    stack = COSTS.stacks[STACK]
    assert stack.execution_s({"a": 1, "c": 1}) == 1.5
    assert stack.execution_s({"a": 2, "c": 1}) == 2.6
    assert stack.execution_s({"a": 3}) == math.inf, "not measured"
    assert stack.execution_s({"a": 1, "x": 1}) == stack.execution_s({}) == math.inf
    assert stack.best_image_s == pytest.approx(2.6 / 6)
    assert COSTS.image_s("b") == stack.best_image_s
    assert COSTS.image_s("x") == 1.0
    assert [COSTS.stack_of(model) for model in "ax"] == [STACK, ""]
    assert COSTS.shortest_s({"a": 1, "b": 1}) == 1.5
    assert COSTS.shortest_s({"a": 1}) == 1.0
