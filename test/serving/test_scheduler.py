"""What runs next, on timelines drawn by hand, and whatever comes."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.serving.execution_costs import ExecutionCosts, group
from split_infer_ros.serving.request import DROP, FINISH, Request, RequestQueue, turn_s
from split_infer_ros.serving.scheduler import LATE, Decision, Rules, decide

# the mean of their parameters is 40: a and b are small, c and d are large
PARAMETERS = {"a": 10, "b": 20, "c": 60, "d": 70}
COSTS = ExecutionCosts(
    PARAMETERS,
    {"a": {1: 1.0, 2: 1.5, 4: 2.0}, "b": {1: 1.0, 2: 1.5}, "c": {1: 4.0, 4: 10.0}, "d": {1: 4.0, 2: 8.0}},
    {group({"a": 1, "b": 1}): 1.6, group({"c": 1, "d": 1}): 9.0},
)
RULES = Rules(window=5)


def queue_of(*rows: tuple[str, str] | tuple[str, str, float, str]) -> RequestQueue:
    """Requests in the order of their coming: tenant, model, and a deadline and what then, if there is one."""
    queue = RequestQueue()
    for number, (tenant, model, *rest) in enumerate(rows):
        deadline, when_late = rest or (math.inf, FINISH)
        queue.add(Request(number, tenant, model, 0.0, deadline, float(number), when_late))  # type: ignore[arg-type]
    return queue


def plan(decision: Decision) -> dict[str, list[int]]:
    return {batch.model: [request.number for request in batch.requests] for batch in decision.batches}


def drain(queue: RequestQueue, costs: ExecutionCosts = COSTS, rules: Rules = RULES) -> list[dict[str, list[int]]]:
    """All executions until nothing waits; time does not pass."""
    found = []
    while decision := decide(queue, costs, 0.0, rules):
        if not decision.requests:
            break
        found.append(plan(decision))
        queue.remove(decision.requests)
    return found


def test_requests_of_one_model_are_one_batch_and_small_models_one_execution() -> None:
    """The paper's Fig. 3: five requests over three models take two executions."""
    rows = [("1", "c"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "b")]
    assert drain(queue_of(*rows)) == [{"c": [0, 3]}, {"a": [1], "b": [2, 4]}]


def test_merge_alone_takes_an_execution_a_model() -> None:
    rows = [("1", "c"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "b")]
    assert drain(queue_of(*rows), rules=Rules(fuse=False)) == [{"c": [0, 3]}, {"a": [1]}, {"b": [2, 4]}]


def test_nothing_waits_for_company() -> None:
    assert plan(decide(queue_of(("1", "a")), COSTS, 0.0, RULES)) == {"a": [0]}
    assert decide(RequestQueue(), COSTS, 0.0, RULES) == Decision()


def test_what_came_meanwhile_joins_what_was_left_of_a_window() -> None:
    queue = queue_of(("1", "a"), ("2", "c"))
    first = decide(queue, COSTS, 0.0, RULES)
    assert plan(first) == {"a": [0]}
    queue.remove(first.requests)
    queue.add(Request(2, "3", "c", 0.0, turn_s=2.0))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == {"c": [1, 2]}


def test_beyond_the_window_and_beyond_the_largest_batch_nothing_is_taken() -> None:
    queue = queue_of(*[(str(tenant), "a") for tenant in range(7)])
    assert plan(decide(queue, COSTS, 0.0, Rules(window=3))) == {"a": [0, 1, 2]}
    assert plan(decide(queue, COSTS, 0.0, Rules(window=7, most=2))) == {"a": [0, 1]}


def test_a_batch_that_saves_nothing_is_not_made() -> None:
    assert drain(queue_of(("1", "d"), ("2", "d"), ("3", "a"), ("4", "a"))) == [{"d": [0]}, {"d": [1]}, {"a": [2, 3]}]


def test_models_whose_fusion_is_slower_than_their_turns_are_not_fused() -> None:
    assert drain(queue_of(("1", "c"), ("2", "d"))) == [{"c": [0]}, {"d": [1]}]


@pytest.mark.parametrize(("deadline", "expected"), [(1.2, {"a": [0]}), (2.0, {"a": [0], "b": [1]})])
def test_nobody_misses_a_deadline_for_companys_sake(deadline: float, expected: dict[str, list[int]]) -> None:
    queue = queue_of(("1", "a", deadline, FINISH), ("2", "b"))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == expected


def test_a_request_that_is_late_in_any_case_takes_company() -> None:
    queue = queue_of(("1", "a", 0.5, FINISH), ("2", "b"))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == {"a": [0], "b": [1]}


def test_what_cannot_meet_its_deadline_is_dropped_if_its_tenant_says_so() -> None:
    queue = queue_of(("1", "a", 0.9, DROP), ("2", "a", 0.9, FINISH), ("3", "a", 1.0, DROP), ("4", "a", 5.0, DROP))
    decision = decide(queue, COSTS, 0.0, RULES)
    assert [request.number for request in decision.late] == [0]
    # the second is late anyway; with the third it would be late for the third, which has its turn next
    assert plan(decision) == {"a": [1, 3]}


def test_of_a_tenant_whose_frame_stays_all_later_ones_stay() -> None:
    queue = queue_of(("1", "a"), ("2", "a", 1.2, DROP), ("2", "a", 9.0, DROP), ("3", "a"))
    assert plan(decide(queue, COSTS, 0.0, RULES)) == {"a": [0, 3]}


arrivals = st.lists(
    st.tuples(st.sampled_from("uvwxyz"), st.floats(0, 5), st.floats(0.0, 8), st.sampled_from([DROP, FINISH])),
    max_size=30,
)
MODEL_OF = dict(zip("uvwxyz", "aabbcd", strict=True))


@given(arrivals, st.integers(1, 8), st.booleans())
def test_whatever_comes_each_request_has_one_end_in_order_and_the_processor_never_rests(
    rows: list[tuple[str, float, float, str]], window: int, fuse: bool
) -> None:
    rules, now, number = Rules(window, 4, fuse), 0.0, 0
    coming = sorted((arrival, tenant, patience, late) for tenant, arrival, patience, late in rows)
    queue, ended, late = RequestQueue(), [], []
    while coming or len(queue):
        if not len(queue):
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            arrival, tenant, patience, when_late = coming.pop(0)
            deadline = arrival + patience
            turn = turn_s(arrival, patience, 0)
            queue.add(Request(number, tenant, MODEL_OF[tenant], arrival, deadline, turn, when_late))
            number += 1
        decision = decide(queue, COSTS, now, rules)
        assert decision.requests or decision.late, "work-conserving"
        first = next((waiting for waiting in queue if waiting not in decision.late), None)
        if first is not None:
            assert first in decision.requests, "the first is served"
        assert len({COSTS.is_small(batch.model) for batch in decision.batches}) <= 1
        assert all(len(batch.requests) <= 4 for batch in decision.batches)
        assert len(decision.requests) <= window
        assert fuse or len(decision.batches) <= 1
        queue.remove([*decision.requests, *decision.late])
        ended += decision.requests
        late += decision.late
        now += COSTS.execution_s({batch.model: len(batch.requests) for batch in decision.batches})
    assert sorted(request.number for request in [*ended, *late]) == list(range(number))
    assert all(request.when_late == DROP for request in late)
    for tenant in MODEL_OF:
        mine = [request.number for request in ended if request.tenant == tenant]
        assert mine == sorted(mine)


@dataclass
class Timeline:
    """What became of each request on one processor: when it came, began, was dropped, and who was ever before it."""

    costs: ExecutionCosts
    rules: Rules
    came_s: dict[int, float] = field(default_factory=dict)
    began_s: dict[int, float] = field(default_factory=dict)
    dropped_s: dict[int, float] = field(default_factory=dict)
    before: dict[int, set[int]] = field(default_factory=dict)
    executions: list[tuple[float, float, Decision]] = field(default_factory=list)  # from, until

    def play(self, coming: Sequence[Request]) -> Timeline:
        """They come in this order; the processor begins the next execution as soon as one ends."""
        queue, now, left = RequestQueue(), 0.0, list(coming)
        while left or len(queue):
            now = max(now, left[0].arrival_s) if not len(queue) else now
            while left and left[0].arrival_s <= now:
                self._arrive(queue, left.pop(0))
            decision = decide(queue, self.costs, now, self.rules)
            queue.remove((*decision.requests, *decision.late))
            self.dropped_s.update({request.number: now for request in decision.late})
            self.began_s.update({request.number: now for request in decision.requests})
            if decision.batches:
                end = now + self.costs.execution_s({batch.model: len(batch.requests) for batch in decision.batches})
                self.executions.append((now, end, decision))
                now = end
        return self

    def _arrive(self, queue: RequestQueue, request: Request) -> None:
        queue.add(request)
        mine = next(waiting for waiting in queue if waiting.number == request.number)
        self.came_s[request.number] = request.arrival_s
        self.before[request.number] = {other.number for other in queue if other.order < mine.order}
        for other in queue:
            if other.order > mine.order:
                self.before[other.number].add(request.number)

    @property
    def delays_s(self) -> list[float]:
        return sorted(began - self.came_s[number] for number, began in self.began_s.items())


@st.composite
def floods(draw: st.DrawFn) -> list[Request]:
    """Whatever an adversary likes: bursts, models, patience, priorities, tenants that want late results and not."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from("uvwxyz"), st.sampled_from([0.0, 0.1, 1.0, 3.0]),
                st.sampled_from([0.0, 0.5, 2.0, 20.0]), st.integers(-2, 3), st.sampled_from([DROP, FINISH]),
            ),
            max_size=40,
        )
    )  # fmt: skip
    now, found = 0.0, []
    for number, (tenant, gap, patience, priority, late) in enumerate(rows):
        now += gap
        turn = turn_s(now, patience, priority)
        found.append(Request(number, tenant, MODEL_OF[tenant], now, now + patience, turn, late))
    return found


all_rules = st.builds(Rules, st.integers(1, 8), st.integers(1, 4), st.booleans())


@given(floods(), all_rules)
def test_nobody_starves(coming: list[Request], rules: Rules) -> None:
    """Who waits sees no more executions than requests are ever before it, and none gets before it after its turn.

    Each execution serves the first who waits, and so one of those before it, until it is itself the first.
    """
    timeline = Timeline(COSTS, rules).play(coming)
    ends = timeline.began_s | timeline.dropped_s
    for request in coming:
        number = request.number
        seen = [begin for begin, _, _ in timeline.executions if request.arrival_s <= begin < ends[number]]
        assert len(seen) <= len(timeline.before[number])
        own = [other.turn_s for other in coming[: number + 1] if other.tenant == request.tenant]
        assert all(coming[other].arrival_s <= max(own) for other in timeline.before[number])


def test_who_comes_last_first_would_starve_the_patient() -> None:
    """The bound above is one: a queue that serves the newest first breaks it."""

    class Newest(RequestQueue):
        def __iter__(self) -> Iterator[Request]:
            return reversed(self[:])

    def seen_by_the_first(queue: RequestQueue) -> int:
        queue.add(Request(0, "patient", "c", 0.0, turn_s=2.0))
        for number in range(1, 50):
            queue.add(Request(number, "flood", "a", float(number), turn_s=number + 1.5))
            decision = decide(queue, COSTS, float(number), Rules(window=1))
            queue.remove(decision.requests)
            if decision.requests[0].number == 0:
                return number - 1
        return 50

    assert seen_by_the_first(RequestQueue()) == 0
    assert seen_by_the_first(Newest()) == 50


@given(floods(), all_rules)
def test_who_wants_no_late_result_gets_none_and_nobody_else_is_dropped(coming: list[Request], rules: Rules) -> None:
    timeline = Timeline(COSTS, rules).play(coming)
    for number, now in timeline.dropped_s.items():
        assert coming[number].when_late == DROP
        assert now + COSTS.batch_s(coming[number].model, 1) > coming[number].deadline_s
    for _, end, decision in timeline.executions:
        assert all(end <= request.deadline_s for request in decision.requests if request.when_late == DROP)
    assert sorted((*timeline.began_s, *timeline.dropped_s)) == list(range(len(coming)))


def test_late_ones_on_a_timeline_drawn_by_hand() -> None:
    """c and d take 4. 0 runs until 4; 1 could only end at 8, past its 7.5; so could 2, which wants to be finished.

    3 has to begin by 7.5, and is of a class that does not run with that of 2: it is too late once 2 is done, at 8.
    """
    coming = [
        Request(0, "u", "c", 0.0, 4.0, 4.0, DROP), Request(1, "v", "d", 1.0, 7.5, 7.5, DROP),
        Request(2, "w", "d", 1.0, 7.6, 7.6, FINISH), Request(3, "x", "a", 2.0, 8.5, 8.5, DROP),
    ]  # fmt: skip
    timeline = Timeline(COSTS, Rules(window=5)).play(coming)
    assert timeline.began_s == {0: 0.0, 2: 4.0}
    assert timeline.dropped_s == {1: 4.0, 3: 8.0}


def test_a_decision_drops_a_few_at_a_time_and_never_keeps_one_who_is_in_time_behind_them() -> None:
    rows = [(str(tenant), "a", 0.5, DROP) for tenant in range(LATE + 10)]
    queue = queue_of(*rows, ("last", "b"))
    first = decide(queue, COSTS, 0.0, RULES)
    assert [request.number for request in first.late] == list(range(LATE))
    assert first.batches == ()
    queue.remove(first.late)
    second = decide(queue, COSTS, 0.0, RULES)
    assert len(second.late) == 10
    assert plan(second) == {"b": [LATE + 10]}


def test_of_a_tenant_who_has_a_frame_on_another_lane_none_overtakes_it() -> None:
    queue = queue_of(("1", "a"), ("2", "a"), ("1", "a"), ("3", "c"))
    assert plan(decide(queue, COSTS, 0.0, RULES, {"1"})) == {"a": [1]}
    assert plan(decide(queue, COSTS, 0.0, RULES, {"1", "2"})) == {"c": [3]}
    assert decide(queue, COSTS, 0.0, RULES, {"1", "2", "3"}) == Decision()


def test_at_low_load_each_begins_as_it_comes() -> None:
    """Whoever comes to a processor that rests begins at once, whatever the window."""
    coming = [Request(number, "u", "a", 1.1 * number, turn_s=1.1 * number) for number in range(20)]
    assert Timeline(COSTS, Rules(window=32)).play(coming).delays_s == [0.0] * 20


@pytest.mark.parametrize("window", [5, 8, 16, 32])
@pytest.mark.parametrize("load", [0.5, 1.0, 3.0])
def test_delays_are_no_longer_than_one_by_one(load: float, window: int) -> None:
    """A thousand requests at random, where a batch saves a tenth for each image after the first."""
    seconds = {"a": 0.03, "b": 0.04, "d": 0.24}
    alone = {model: {size: one * (0.1 + 0.9 * size) for size in (1, 64)} for model, one in seconds.items()}
    costs = ExecutionCosts(PARAMETERS, alone)
    chance, now, coming = random.Random(0), 0.0, []
    for number in range(1000):
        now += chance.expovariate(load * 3 / sum(seconds.values()))
        coming.append(Request(number, str(number % 8), chance.choice("abd"), now, turn_s=now))
    ours, base = (Timeline(costs, Rules(size)).play(coming).delays_s for size in (window, 1))
    assert statistics.fmean(ours) < statistics.fmean(base)
    assert ours[990] < base[990]
