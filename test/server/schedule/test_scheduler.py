"""Which execution runs next: on timelines drawn by hand, and for whatever requests come."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.execution_costs import ExecutionCosts, combination_of
from split_infer_ros.server.schedule.request import LatePolicy, Request, RequestQueue, virtual_deadline_s
from split_infer_ros.server.schedule.scheduler import MAX_LATE, Decision, Rules, decide, due_at

DROP, FINISH = LatePolicy.DROP, LatePolicy.FINISH
# The mean of the parameters is 40: a and b are small, c and d are large.
PARAMETERS = {"a": 10, "b": 20, "c": 60, "d": 70}
COSTS = ExecutionCosts(
    PARAMETERS,
    {"a": {1: 1.0, 2: 1.5, 4: 2.0}, "b": {1: 1.0, 2: 1.5}, "c": {1: 4.0, 4: 10.0}, "d": {1: 4.0, 2: 8.0}},
    {combination_of({"a": 1, "b": 1}): 1.6, combination_of({"c": 1, "d": 1}): 9.0},
)
RULES = Rules(window=5)


def queue_of(*rows: tuple[str, str] | tuple[str, str, float, LatePolicy]) -> RequestQueue:
    """A queue of requests in the order of the rows: tenant and model, with or without a deadline and a late policy."""
    queue = RequestQueue()
    for number, (tenant, model, *late) in enumerate(rows):
        queue.add(request(number, tenant, model, 0.0, *late, virtual_deadline_s=float(number)))  # type: ignore[arg-type]
    return queue


def request(
    number: int,
    tenant: str,
    model: str,
    arrival_s: float,
    deadline_s: float = math.inf,
    when_late: LatePolicy = FINISH,
    *,
    virtual_deadline_s: float | None = None,
) -> Request:
    """A request whose virtual deadline is its deadline, unless another one is given."""
    return Request(
        number,
        tenant,
        model,
        arrival_s=arrival_s,
        deadline_s=deadline_s,
        virtual_deadline_s=deadline_s if virtual_deadline_s is None else virtual_deadline_s,
        when_late=when_late,
    )


def numbers_by_model(decision: Decision) -> dict[str, list[int]]:
    return {batch.model: [request.number for request in batch.requests] for batch in decision.batches}


def drain(queue: RequestQueue, costs: ExecutionCosts = COSTS, rules: Rules = RULES) -> list[dict[str, list[int]]]:
    """All executions until the queue is empty; time does not pass."""
    executions = []
    while decision := decide(queue, costs, now=0.0, rules=rules):
        if not decision.requests:
            break
        executions.append(numbers_by_model(decision))
        queue.remove(decision.requests)
    return executions


@pytest.mark.parametrize(
    ("two_s", "num_waiting", "num_at_once", "expected"),
    [
        (1.8, 2, None, 2),  # the paper's rule: less time than one after the other
        (1.8, 2, 1, 1),  # the first would wait 0.8 s for a second that gains 0.2 s
        (1.8, 2, 2, 1),
        (1.4, 2, 1, 2),
        (1.4, 2, 2, 1),  # the other lane would be as quick
        (1.8, 40, 1, 2),  # each of those behind gains 0.2 s
        (1.8, 40, 2, 2),
        (1.47, 2, 1, 1),  # within the noise
        (2.0, 1000, 1, 1),
    ],
)
def test_on_a_cpu_requests_are_merged_if_all_that_wait_are_done_sooner(
    two_s: float, num_waiting: int, num_at_once: int | None, expected: int
) -> None:
    costs = ExecutionCosts({"a": 1}, {"a": {1: 1.0, 2: two_s}})
    queue = queue_of(*[(str(number), "a") for number in range(num_waiting)])
    decision = decide(queue, costs, now=0.0, rules=Rules(window=2), num_at_once=num_at_once)
    assert numbers_by_model(decision) == {"a": list(range(expected))}


@pytest.mark.parametrize(("num_at_once", "merge_unknown", "expected"), [(2, False, 1), (2, True, 2), (None, False, 2)])
def test_requests_without_costs_are_merged_on_a_cpu_if_the_rules_say_so(
    num_at_once: int | None, merge_unknown: bool, expected: int
) -> None:
    """An engine might have to compile the batch while frames flow."""
    queue, rules = queue_of(("1", "a"), ("2", "a")), Rules(window=2, merge_unknown=merge_unknown)
    decision = decide(queue, ExecutionCosts({}, {}), now=0.0, rules=rules, num_at_once=num_at_once)
    assert numbers_by_model(decision) == {"a": list(range(expected))}


def test_requests_that_are_dropped_as_late_gain_nothing() -> None:
    late = [(f"late {number}", "a", 0.5, DROP) for number in range(10)]
    costs = ExecutionCosts({"a": 1}, {"a": {1: 1.0, 2: 1.8}})
    queue = queue_of(*late, ("1", "a"), ("2", "a"))
    decision = decide(queue, costs, now=0.0, rules=Rules(window=2), num_at_once=1)
    assert (len(decision.late), numbers_by_model(decision)) == (10, {"a": [10]})


def test_on_a_gpu_a_batch_grows_over_the_steps_of_recorded_sizes() -> None:
    """The ninth request alone would not pay, but sixteen do."""
    costs = ExecutionCosts({"a": 1}, {"a": {1: 1.0, 8: 5.0, 16: 8.5}}, pads=True)
    queue = queue_of(*[(str(number), "a") for number in range(16)])
    (batch,) = decide(queue, costs, now=0.0, rules=Rules(window=16)).batches
    assert len(batch.requests) == 16


def test_frames_that_replace_each_other_do_not_wait_anew() -> None:
    """A camera sends every 30 ms, only its newest frame waits, and a batch waits 50 ms for others."""
    queue, rules = RequestQueue(), Rules(window=4, timeout_s=0.05)
    for number in range(4):
        queue.add(request(number, "1", "a", 0.03 * number, virtual_deadline_s=0.03 * number))
        if number:
            queue.remove_oldest(("1", ""))
        assert due_at(queue, ExecutionCosts({}, {}), rules) == {"a": 0.05}


def test_who_waits_for_full_batches_gets_them() -> None:
    """With a timeout, the user wants the most frames."""
    costs, queue = ExecutionCosts({"a": 1}, {"a": {1: 1.0, 2: 1.8}}), queue_of(("1", "a"), ("2", "a"))
    decision = decide(queue, costs, now=0.0, rules=Rules(window=2, timeout_s=0.1), num_at_once=1)
    assert numbers_by_model(decision) == {"a": [0, 1]}


def test_batches_are_merged_and_small_models_fused() -> None:
    """The paper's Fig. 3: five requests over three models take two executions."""
    rows = [("1", "c"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "b")]
    assert drain(queue_of(*rows)) == [{"c": [0, 3]}, {"a": [1], "b": [2, 4]}]


def test_without_fusing_each_model_is_one_execution() -> None:
    rows = [("1", "c"), ("2", "a"), ("3", "b"), ("4", "c"), ("5", "b")]
    assert drain(queue_of(*rows), rules=Rules(fuse=False)) == [{"c": [0, 3]}, {"a": [1]}, {"b": [2, 4]}]


def test_single_request_runs_at_once() -> None:
    assert numbers_by_model(decide(queue_of(("1", "a")), COSTS, now=0.0, rules=RULES)) == {"a": [0]}
    assert decide(RequestQueue(), COSTS, now=0.0, rules=RULES) == Decision()


def test_new_request_joins_the_rest_of_a_window() -> None:
    queue = queue_of(("1", "a"), ("2", "c"))
    first = decide(queue, COSTS, now=0.0, rules=RULES)
    assert numbers_by_model(first) == {"a": [0]}
    queue.remove(first.requests)
    queue.add(request(2, "3", "c", 0.0, virtual_deadline_s=2.0))
    assert numbers_by_model(decide(queue, COSTS, now=0.0, rules=RULES)) == {"c": [1, 2]}


def test_window_and_largest_batch_bound_an_execution() -> None:
    queue = queue_of(*[(str(tenant), "a") for tenant in range(7)])
    decision = decide(queue, COSTS, now=0.0, rules=Rules(window=3))
    assert numbers_by_model(decision) == {"a": [0, 1, 2]}
    decision = decide(queue, COSTS, now=0.0, rules=Rules(window=7, max_batch_size=2))
    assert numbers_by_model(decision) == {"a": [0, 1]}


def test_batch_that_saves_nothing_is_not_made() -> None:
    assert drain(queue_of(("1", "d"), ("2", "d"), ("3", "a"), ("4", "a"))) == [{"d": [0]}, {"d": [1]}, {"a": [2, 3]}]


def test_slower_fusion_is_not_made() -> None:
    assert drain(queue_of(("1", "c"), ("2", "d"))) == [{"c": [0]}, {"d": [1]}]


@pytest.mark.parametrize(("deadline_s", "expected"), [(1.2, {"a": [0]}), (2.0, {"a": [0], "b": [1]})])
def test_joining_request_costs_no_deadline(deadline_s: float, expected: dict[str, list[int]]) -> None:
    queue = queue_of(("1", "a", deadline_s, FINISH), ("2", "b"))
    assert numbers_by_model(decide(queue, COSTS, now=0.0, rules=RULES)) == expected


def test_late_request_is_merged_and_fused() -> None:
    queue = queue_of(("1", "a", 0.5, FINISH), ("2", "b"))
    assert numbers_by_model(decide(queue, COSTS, now=0.0, rules=RULES)) == {"a": [0], "b": [1]}


def test_late_request_is_dropped_if_its_tenant_says_so() -> None:
    queue = queue_of(("1", "a", 0.9, DROP), ("2", "a", 0.9, FINISH), ("3", "a", 1.0, DROP), ("4", "a", 5.0, DROP))
    decision = decide(queue, COSTS, now=0.0, rules=RULES)
    assert [request.number for request in decision.late] == [0]
    # The second is late in any case. With it, the third would be late, so the third runs next.
    assert numbers_by_model(decision) == {"a": [1, 3]}


def test_tenants_later_requests_wait_for_a_skipped_one() -> None:
    queue = queue_of(("1", "a"), ("2", "a", 1.2, DROP), ("2", "a", 9.0, DROP), ("3", "a"))
    assert numbers_by_model(decide(queue, COSTS, now=0.0, rules=RULES)) == {"a": [0, 3]}


arrivals = st.lists(
    st.tuples(st.sampled_from("uvwxyz"), st.floats(0, 5), st.floats(0.0, 8), st.sampled_from(["drop", "finish"])),
    max_size=30,
)
MODEL_OF = dict(zip("uvwxyz", "aabbcd", strict=True))


@given(arrivals, st.integers(1, 8), st.booleans())
def test_every_request_ends_once_and_in_order(
    rows: list[tuple[str, float, float, str]], window: int, fuse: bool
) -> None:
    """The scheduler is work-conserving, serves the first request, and keeps to its rules, whatever comes."""
    rules, now, number = Rules(window, 4, fuse), 0.0, 0
    coming = sorted((arrival, tenant, patience, late) for tenant, arrival, patience, late in rows)
    queue, ended, late = RequestQueue(), [], []
    while coming or len(queue):
        if not len(queue):
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            arrival_s, tenant, patience_s, when_late = coming.pop(0)
            queue.add(
                request(
                    number,
                    tenant,
                    MODEL_OF[tenant],
                    arrival_s,
                    deadline_s=arrival_s + patience_s,
                    when_late=LatePolicy(when_late),
                    virtual_deadline_s=virtual_deadline_s(arrival_s, patience_s, 0),
                )
            )
            number += 1
        decision = decide(queue, COSTS, now=now, rules=rules)
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
    assert all(request.when_late is DROP for request in late)
    for tenant in MODEL_OF:
        of_tenant = [request.number for request in ended if request.tenant == tenant]
        assert of_tenant == sorted(of_tenant)


@dataclass
class Timeline:
    """What became of each request on one processor.

    Attributes:
        arrived_s: when each request came.
        began_s: when its execution began.
        dropped_s: when it was dropped.
        before: the requests that were ever before it in the queue.
        executions: begin, end and decision of each execution.
    """

    costs: ExecutionCosts
    rules: Rules
    arrived_s: dict[int, float] = field(default_factory=dict)
    began_s: dict[int, float] = field(default_factory=dict)
    dropped_s: dict[int, float] = field(default_factory=dict)
    before: dict[int, set[int]] = field(default_factory=dict)
    executions: list[tuple[float, float, Decision]] = field(default_factory=list)

    def simulate(self, coming: Sequence[Request]) -> Timeline:
        """Requests come in this order; the processor begins the next execution as soon as one ends."""
        queue, now, remaining = RequestQueue(), 0.0, list(coming)
        while remaining or len(queue):
            now = max(now, remaining[0].arrival_s) if not len(queue) else now
            while remaining and remaining[0].arrival_s <= now:
                self._arrive(queue, remaining.pop(0))
            decision = decide(queue, self.costs, now=now, rules=self.rules)
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
        queued = next(waiting for waiting in queue if waiting.number == request.number)
        self.arrived_s[request.number] = request.arrival_s
        self.before[request.number] = {other.number for other in queue if other.order < queued.order}
        for other in queue:
            if other.order > queued.order:
                self.before[other.number].add(request.number)

    @property
    def delays_s(self) -> list[float]:
        return sorted(began_s - self.arrived_s[number] for number, began_s in self.began_s.items())


@st.composite
def floods(draw: st.DrawFn) -> list[Request]:
    """Whatever an adversary likes: bursts, models, patience, priorities, and both late policies."""
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from("uvwxyz"), st.sampled_from([0.0, 0.1, 1.0, 3.0]),
                st.sampled_from([0.0, 0.5, 2.0, 20.0]), st.integers(-2, 3), st.sampled_from([DROP, FINISH]),
            ),
            max_size=40,
        )
    )  # fmt: skip
    now, requests = 0.0, []
    for number, (tenant, gap_s, patience_s, priority, when_late) in enumerate(rows):
        now += gap_s
        virtual_s = virtual_deadline_s(now, patience_s, priority)
        drawn = request(
            number, tenant, MODEL_OF[tenant], now, now + patience_s, when_late, virtual_deadline_s=virtual_s
        )
        requests.append(drawn)
    return requests


all_rules = st.builds(Rules, st.integers(1, 8), st.integers(1, 4), st.booleans())


@given(floods(), all_rules)
def test_no_request_starves(coming: list[Request], rules: Rules) -> None:
    """A request waits for no more executions than there are requests that are ever before it.

    None gets before it that arrives after its virtual deadline. Each execution serves the first request, and so one of
    those before it, until it is the first itself.
    """
    timeline = Timeline(COSTS, rules).simulate(coming)
    ends = timeline.began_s | timeline.dropped_s
    for waiting in coming:
        number = waiting.number
        seen = [begin for begin, _, _ in timeline.executions if waiting.arrival_s <= begin < ends[number]]
        assert len(seen) <= len(timeline.before[number])
        virtual_deadlines_s = [
            other.virtual_deadline_s for other in coming[: number + 1] if other.tenant == waiting.tenant
        ]
        assert all(coming[other].arrival_s <= max(virtual_deadlines_s) for other in timeline.before[number])


def test_newest_first_would_starve_a_patient_request() -> None:
    """Shows that the bound above means something: a queue that serves the newest first breaks it."""

    class NewestFirst(RequestQueue):
        def __iter__(self) -> Iterator[Request]:
            return reversed(self[:])

    def executions_before_the_first(queue: RequestQueue) -> int:
        queue.add(request(0, "patient", "c", 0.0, virtual_deadline_s=2.0))
        for number in range(1, 50):
            queue.add(request(number, "flood", "a", float(number), virtual_deadline_s=number + 1.5))
            decision = decide(queue, COSTS, now=float(number), rules=Rules(window=1))
            queue.remove(decision.requests)
            if decision.requests[0].number == 0:
                return number - 1
        return 50

    assert executions_before_the_first(RequestQueue()) == 0
    assert executions_before_the_first(NewestFirst()) == 50


@given(floods(), all_rules)
def test_only_late_requests_of_dropping_tenants_are_dropped(coming: list[Request], rules: Rules) -> None:
    timeline = Timeline(COSTS, rules).simulate(coming)
    for number, now in timeline.dropped_s.items():
        assert coming[number].when_late is DROP
        assert now + COSTS.batch_s(coming[number].model, 1) > coming[number].deadline_s
    for _, end, decision in timeline.executions:
        assert all(end <= request.deadline_s for request in decision.requests if request.when_late is DROP)
    assert sorted((*timeline.began_s, *timeline.dropped_s)) == list(range(len(coming)))


def test_late_requests_on_a_drawn_timeline() -> None:
    """Request 0 runs until 4. Requests 1 and 2 could only end at 8, past 7.5 and 7.6; request 2 is finished late.

    Request 3 has to begin by 7.5. Its model's size class does not run with that of request 2, which ends at 8.
    """
    coming = [
        request(0, "u", "c", 0.0, 4.0, DROP),
        request(1, "v", "d", 1.0, 7.5, DROP),
        request(2, "w", "d", 1.0, 7.6, FINISH),
        request(3, "x", "a", 2.0, 8.5, DROP),
    ]
    timeline = Timeline(COSTS, Rules(window=5)).simulate(coming)
    assert timeline.began_s == {0: 0.0, 2: 4.0}
    assert timeline.dropped_s == {1: 4.0, 3: 8.0}


def test_decision_drops_a_bounded_number_of_late_requests() -> None:
    rows = [(str(tenant), "a", 0.5, DROP) for tenant in range(MAX_LATE + 10)]
    queue = queue_of(*rows, ("last", "b"))
    first = decide(queue, COSTS, now=0.0, rules=RULES)
    assert [request.number for request in first.late] == list(range(MAX_LATE))
    assert first.batches == ()
    queue.remove(first.late)
    second = decide(queue, COSTS, now=0.0, rules=RULES)
    assert len(second.late) == 10
    assert numbers_by_model(second) == {"b": [MAX_LATE + 10]}, "late requests keep no other one waiting"


UNKNOWN = ExecutionCosts({}, {})


def test_without_costs_a_models_requests_are_merged_and_none_is_fused() -> None:
    queue = queue_of(("1", "a"), ("2", "b"), ("3", "a"), ("4", "a"), ("5", "a"))
    decision = decide(queue, UNKNOWN, now=0.0, rules=Rules(window=5, max_batch_size=3))
    assert numbers_by_model(decision) == {"a": [0, 2, 3]}
    queue.remove(decision.requests)
    assert numbers_by_model(decide(queue, UNKNOWN, now=0.0, rules=RULES)) == {"b": [1]}


def test_a_model_without_costs_is_fused_with_no_known_one() -> None:
    costs = ExecutionCosts({"a": 1, "b": 1}, {"a": {1: 1.0}}, fused_s={(("a", 1), ("b", 1)): 0.1})
    queue = queue_of(("1", "a"), ("2", "b"))
    assert numbers_by_model(decide(queue, costs, now=0.0, rules=RULES)) == {"a": [0]}


def test_a_batch_is_due_once_it_is_full_or_its_oldest_request_waited() -> None:
    rules = Rules(window=8, max_batch_size=2, timeout_s=3.0)
    queue = [request(0, "1", "a", 1.0), request(1, "2", "b", 1.5), request(2, "3", "a", 2.0)]
    assert due_at(queue, UNKNOWN, rules) == {"a": 1.0, "b": 4.5}
    assert due_at([], UNKNOWN, rules) == {}


def test_a_batch_is_full_where_one_more_would_save_nothing() -> None:
    """Two images of a cost twice as much as one, so none waits for another."""
    costs = ExecutionCosts({"a": 1}, {"a": {1: 1.0, 2: 2.0}})
    assert due_at([request(0, "1", "a", 1.0)], costs, Rules(max_batch_size=2, timeout_s=3.0)) == {"a": 1.0}


def test_idle_processor_begins_at_once_with_any_window() -> None:
    coming = [request(number, "u", "a", 1.1 * number, virtual_deadline_s=1.1 * number) for number in range(20)]
    assert Timeline(COSTS, Rules(window=32)).simulate(coming).delays_s == [0.0] * 20


@pytest.mark.parametrize("window", [5, 8, 16, 32])
@pytest.mark.parametrize("load", [0.5, 1.0, 3.0])
def test_delays_are_no_longer_than_one_by_one(load: float, window: int) -> None:
    """A thousand requests at random, where a batch saves a tenth for each image after the first."""
    image_s = {"a": 0.03, "b": 0.04, "d": 0.24}
    alone_s = {model: {size: seconds * (0.1 + 0.9 * size) for size in (1, 64)} for model, seconds in image_s.items()}
    costs = ExecutionCosts(PARAMETERS, alone_s)
    generator, now, coming = random.Random(0), 0.0, []
    for number in range(1000):
        now += generator.expovariate(load * 3 / sum(image_s.values()))
        coming.append(request(number, str(number % 8), generator.choice("abd"), now, virtual_deadline_s=now))
    ours, base = (Timeline(costs, Rules(size)).simulate(coming).delays_s for size in (window, 1))
    assert statistics.fmean(ours) < statistics.fmean(base)
    assert ours[990] < base[990]
