"""Which execution starts on which lane: on timelines drawn by hand, and for whatever requests come."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler, ScheduledExecution
from split_infer_ros.server.schedule.request import LatePolicy, Request, RequestQueue, virtual_deadline_s
from split_infer_ros.server.schedule.scheduler import Rules

DROP, FINISH = LatePolicy.DROP, LatePolicy.FINISH
# On all cores an a takes 1, a b takes 4; on one of two lanes 1.5 and 7.
PARAMETERS = {"a": 1, "b": 1}
WHOLE = ExecutionCosts(PARAMETERS, {"a": {1: 1.0}, "b": {1: 4.0}})
MODES = ExecutionModes(WHOLE, 2, ExecutionCosts(PARAMETERS, {"a": {1: 1.5}, "b": {1: 7.0}}))
RULES = Rules(window=5)
ALL_CORES = "A"  # in a drawing, in place of a lane's number

Drawing = list[tuple[int | str, float, float, list[int]]]  # lane, begin, end, and the numbers of the requests


@dataclass
class Timeline:
    """Serves requests as they come; each execution takes what it costs.

    Attributes:
        drawn: every execution.
        late: the requests that were dropped.
        ended_s: for each request when it began or was dropped.
        ahead: for each request, all that were ever before it in the queue. Executions that ran when it came have
            negative numbers.
    """

    coming: list[Request]
    modes: ExecutionModes = MODES
    rules: Rules = RULES
    drawn: Drawing = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    ended_s: dict[int, float] = field(default_factory=dict)
    ahead: dict[int, set[int]] = field(default_factory=dict)
    queue: RequestQueue = field(default_factory=RequestQueue)

    def simulate(self) -> Drawing:
        scheduler, queue = LaneScheduler(self.modes.num_lanes), self.queue
        coming = sorted(self.coming, key=lambda request: request.arrival_s)
        running: dict[ScheduledExecution, float] = {}
        now = 0.0
        while coming or running or len(queue):
            while coming and coming[0].arrival_s <= now:
                self._arrive(coming.pop(0), len(running))
            while True:
                execution = scheduler.choose(queue, self.modes, now=now, rules=self.rules)
                decision = execution.decision
                queue.remove((*decision.requests, *decision.late))
                self.late += [request.number for request in decision.late]
                self.ended_s |= {request.number: now for request in (*decision.requests, *decision.late)}
                if decision.batches:
                    scheduler.begin(execution, now)
                    end = running[execution] = now + execution.seconds
                    lane = ALL_CORES if execution.lane is None else execution.lane
                    self.drawn.append((lane, now, end, [request.number for request in decision.requests]))
                elif not decision.late:
                    break
            assert running or coming or not len(queue), "idle, though requests wait"
            now = min([*running.values(), *(request.arrival_s for request in coming[:1])], default=now)
            for execution in [execution for execution, end in running.items() if end <= now]:
                scheduler.end(execution, now)
                del running[execution]
        assert scheduler.is_idle
        return self.drawn

    def _arrive(self, request: Request, num_running: int) -> None:
        self.queue.add(request)
        order = [waiting.number for waiting in self.queue[:]]
        place = order.index(request.number)
        self.ahead[request.number] = {*order[:place], *range(-num_running, 0)}
        for number in order[place + 1 :]:
            self.ahead[number].add(request.number)

    def longest_wait_over_bound(self) -> float:
        """The longest wait of any request, over the bound that ``LaneScheduler`` promises to it."""
        longest_s = max((end - begin for _, begin, end, _ in self.drawn), default=0.0)
        waits_s = {request.number: self.ended_s[request.number] - request.arrival_s for request in self.coming}
        bounds_s = {number: (2 * len(ahead) + 1) * longest_s for number, ahead in self.ahead.items()}
        return max((waits_s[number] / bounds_s[number] for number in waits_s if waits_s[number]), default=0.0)


def requests(*rows: tuple[str, str, float] | tuple[str, str, float, float, LatePolicy]) -> list[Request]:
    """Requests of the rows: tenant, model and arrival, with or without a deadline and a late policy."""
    made = []
    for number, (tenant, model, arrival_s, *late) in enumerate(rows):
        deadline_s, when_late = late or (math.inf, FINISH)
        request = Request(
            number,
            tenant,
            model,
            arrival_s=arrival_s,
            deadline_s=deadline_s,  # type: ignore[arg-type]
            virtual_deadline_s=arrival_s,
            when_late=when_late,  # type: ignore[arg-type]
        )
        made.append(request)
    return made


def queue_of(coming: list[Request]) -> RequestQueue:
    queue = RequestQueue()
    for request in coming:
        queue.add(request)
    return queue


def test_single_request_has_all_cores_and_two_have_a_lane_each() -> None:
    coming = requests(("1", "a", 0.0), ("1", "a", 5.0), ("2", "a", 5.0))
    assert Timeline(coming).simulate() == [(ALL_CORES, 0.0, 1.0, [0]), (0, 5.0, 6.5, [1]), (1, 5.0, 6.5, [2])]


def test_lanes_begin_once_all_cores_are_free() -> None:
    coming = requests(("1", "b", 0.0), ("2", "a", 1.0), ("3", "a", 1.0), ("4", "a", 1.0))
    assert Timeline(coming).simulate() == [
        (ALL_CORES, 0.0, 4.0, [0]), (0, 4.0, 5.5, [1]), (1, 4.0, 5.5, [2]), (ALL_CORES, 5.5, 6.5, [3])
    ]  # fmt: skip


def test_free_lane_takes_the_next_request() -> None:
    coming = requests(("1", "b", 0.0), ("2", "b", 0.0), ("1", "a", 0.5), ("3", "a", 1.0), ("2", "a", 1.0))
    one_tenant = requests(*(("4", "a", 0.0) for _ in range(3)))
    assert Timeline(coming).simulate()[:3] == [(0, 0.0, 7.0, [0]), (1, 0.0, 7.0, [1]), (0, 7.0, 8.5, [2])]
    assert Timeline(one_tenant, rules=Rules(max_batch_size=1)).simulate() == [
        (0, 0.0, 1.5, [0]), (1, 0.0, 1.5, [1]), (ALL_CORES, 1.5, 2.5, [2])
    ], "frames of one camera run side by side"  # fmt: skip


def test_deadline_that_only_all_cores_meet_gets_them() -> None:
    """Two lanes are at work until 1.5. The last request is then done at 2.5 on all cores, and at 3 on a lane."""
    coming = requests(("1", "a", 0.0), ("2", "a", 0.0), ("4", "b", 1.2), ("3", "a", 1.1, 2.55, DROP))
    assert Timeline(coming).simulate()[2] == (ALL_CORES, 1.5, 2.5, [3])


def test_lanes_are_drained_only_for_a_deadline_that_is_met() -> None:
    scheduler = LaneScheduler(2)
    waiting = queue_of(requests(("1", "b", 0.0), ("2", "b", 0.0)))
    first = scheduler.choose(waiting, MODES, now=0.0, rules=Rules(max_batch_size=1))
    scheduler.begin(first, 0.0)
    assert (first.lane, first.seconds) == (0, 7.0)

    def choose(now: float, deadline_s: float) -> ScheduledExecution:
        queue = queue_of(requests(("3", "a", now, deadline_s, DROP)))
        return scheduler.choose(queue, MODES, now=now, rules=RULES)

    assert choose(1.0, 2.4).decision.late
    assert choose(1.0, 2.6).lane == 1
    draining = choose(6.8, 8.2).decision
    assert not draining.batches
    assert not draining.late
    scheduler.end(first, 7.0)
    on_all_cores = choose(7.0, 8.2)
    assert on_all_cores.decision.batches
    assert on_all_cores.lane is None


def test_request_behind_the_first_is_late_only_by_all_cores() -> None:
    coming = requests(("1", "b", 0.0), ("2", "b", 0.0), ("4", "a", 0.0, 1.2, DROP))
    queue = queue_of(coming)
    execution = LaneScheduler(2).choose(queue, MODES, now=0.0, rules=RULES)
    assert execution.lane == 0
    assert execution.decision.late == ()
    queue.remove(coming[:2])
    assert LaneScheduler(2).choose(queue, MODES, now=0.0, rules=RULES).lane is None
    timeline = Timeline(coming)
    timeline.simulate()
    assert timeline.late == [2], "both lanes were at work"


@pytest.mark.parametrize(("lane_s", "on_lane"), [(1.9, False), (1.2, True)])
def test_two_requests_are_not_merged_where_that_delays_the_first(lane_s: float, on_lane: bool) -> None:
    """Merged, they would take 1.8 times as long as one. Four of each are merged, because those behind gain."""
    whole, lane = (ExecutionCosts({"a": 1}, {"a": {1: image_s, 2: 1.8 * image_s}}) for image_s in (1.0, lane_s))
    modes, rules = ExecutionModes(whole, 2, lane), Rules(window=2)
    few, many = (queue_of(requests(*[(str(n), "a", 0.0) for n in range(count)])) for count in (2, 40))
    for queue, expected in ((few, 1), (many, 2)):
        execution = LaneScheduler(2).choose(queue, modes, now=0.0, rules=rules)
        assert (execution.lane is not None, len(execution.decision.requests)) == (on_lane, expected)
    assert len(LaneScheduler().choose(few, ExecutionModes(whole), now=0.0, rules=rules).decision.requests) == 2


def test_all_cores_serve_everything_if_lanes_serve_less() -> None:
    slow = ExecutionModes(WHOLE, 2, ExecutionCosts(PARAMETERS, {"a": {1: 2.1}, "b": {1: 8.0}}))
    coming = requests(("1", "a", 0.0), ("2", "a", 0.0), ("3", "b", 0.0))
    assert {lane for lane, *_ in Timeline(coming, slow).simulate()} == {ALL_CORES}


def test_without_lanes_a_bounded_number_is_given_ahead() -> None:
    modes, scheduler = ExecutionModes(WHOLE), LaneScheduler(depth=2)
    queue = queue_of(requests(("1", "a", 0.0), ("2", "a", 0.0), ("3", "b", 0.0)))
    one_by_one = Rules(max_batch_size=1, fuse=False)
    executions = []
    while (execution := scheduler.choose(queue, modes, now=0.0, rules=one_by_one)).decision.batches:
        queue.remove(execution.decision.requests)
        scheduler.begin(execution, 0.0)
        executions.append(execution)
    assert [execution.lane for execution in executions] == [None, None]
    scheduler.end(executions[0], 1.0)
    assert scheduler.choose(queue, modes, now=0.0, rules=RULES).decision.requests


COMING = st.lists(
    st.tuples(
        st.sampled_from("1234"),
        st.sampled_from("ab"),
        st.floats(0.0, 30.0),
        st.one_of(st.just(math.inf), st.floats(0.5, 40.0)),
        st.sampled_from([DROP, FINISH]),
    ),
    max_size=25,
)


def slower_lanes(num_lanes: int, factor: float) -> ExecutionModes:
    """Modes in which a lane takes ``factor`` times as long as all cores; without lanes only all cores."""
    if not num_lanes:
        return ExecutionModes(WHOLE)
    lane_s = {model: {1: factor * seconds[1]} for model, seconds in WHOLE.alone_s.items()}
    return ExecutionModes(WHOLE, num_lanes, ExecutionCosts(PARAMETERS, lane_s))


@given(COMING, st.integers(0, 4), st.integers(1, 8), st.floats(1.0, 2.5))
def test_every_request_is_decided_once_in_its_tenants_order(
    rows: list[tuple[str, str, float, float, LatePolicy]], num_lanes: int, window: int, slower: float
) -> None:
    coming = requests(*sorted(rows, key=lambda row: row[2]))
    timeline = Timeline(coming, slower_lanes(num_lanes, slower), Rules(window, max_batch_size=2))
    drawn = timeline.simulate()
    served = [number for *_, numbers in drawn for number in numbers]
    assert sorted([*served, *timeline.late]) == [request.number for request in coming]
    assert all(coming[number].when_late is DROP for number in timeline.late)
    latest: dict[str, int] = defaultdict(lambda: -1)
    for *_, numbers in drawn:
        for number in sorted(numbers):
            assert latest[coming[number].tenant] < number, "a frame overtook an earlier one of its camera"
            latest[coming[number].tenant] = number
    for lane, begin, end, _ in drawn:
        concurrent = [other for other, other_begin, other_end, _ in drawn if other_begin < end and begin < other_end]
        assert concurrent.count(lane) == 1
        assert concurrent == [ALL_CORES] or ALL_CORES not in concurrent, "all cores, and a lane"


ROWS = st.tuples(
    st.sampled_from("123456"),
    st.sampled_from("ab"),
    st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    st.sampled_from([0.0, 0.5, 2.0, 4.5, 8.0, 20.0]),
    st.integers(-2, 3),
    st.sampled_from([DROP, FINISH]),
)


@st.composite
def floods(draw: st.DrawFn) -> list[Request]:
    """Whatever an adversary likes: bursts, models, patience that only all cores can meet, priorities."""
    now, made = 0.0, []
    for number, (tenant, model, gap_s, patience_s, priority, when_late) in enumerate(draw(st.lists(ROWS, max_size=40))):
        now += gap_s
        request = Request(
            number,
            tenant,
            model,
            arrival_s=now,
            deadline_s=now + patience_s,
            virtual_deadline_s=virtual_deadline_s(now, patience_s, priority),
            when_late=when_late,
        )
        made.append(request)
    return made


@given(floods(), st.integers(1, 4), st.integers(1, 8), st.integers(1, 4), st.floats(1.0, 2.5))
def test_no_request_starves_with_any_number_of_lanes(
    coming: list[Request], num_lanes: int, window: int, max_batch_size: int, slower: float
) -> None:
    timeline = Timeline(coming, slower_lanes(num_lanes, slower), Rules(window, max_batch_size))
    timeline.simulate()
    assert timeline.longest_wait_over_bound() <= 1 + 1e-9


def test_newest_first_would_break_the_bound_on_waiting() -> None:
    """Shows that the bound above means something: lanes that serve the newest request first break it."""

    class NewestFirst(RequestQueue):
        def __iter__(self) -> Iterator[Request]:
            return reversed(self[:])

    flood = [
        Request(number, str(number), "a", arrival_s=0.5 * number, virtual_deadline_s=0.5 * number)
        for number in range(80)
    ]
    fair = Timeline(list(flood), rules=Rules(1))
    unfair = Timeline(list(flood), rules=Rules(1), queue=NewestFirst())
    for timeline in (fair, unfair):
        timeline.simulate()
    assert fair.longest_wait_over_bound() <= 1
    assert unfair.longest_wait_over_bound() > 1


def test_lane_for_each_request_begins_sooner_and_ends_later() -> None:
    """At half of capacity, all cores serve a single request, though the next one waits: on average all end sooner."""

    class AlwaysLanes(ExecutionModes):
        def all_cores_finish_sooner(self, waiting: Sequence[Request], *, more_arrive: bool = False) -> bool:
            return False

    generator, now, coming = random.Random(0), 0.0, []
    for number in range(500):
        now += generator.expovariate(0.5 * 2 / (1.0 + 4.0))
        model = generator.choice("ab")
        coming.append(Request(number, str(number), model, arrival_s=now, virtual_deadline_s=now))
    delays_s, responses_s = [], []
    for modes in (MODES, AlwaysLanes(MODES.whole, MODES.num_lanes, MODES.lane)):
        drawn = Timeline(list(coming), modes).simulate()
        served = [(begin, end, coming[number].arrival_s) for _, begin, end, numbers in drawn for number in numbers]
        delays_s.append(statistics.fmean(begin - arrival for begin, _, arrival in served))
        responses_s.append(statistics.fmean(end - arrival for _, end, arrival in served))
    assert delays_s[1] < delays_s[0]
    assert responses_s[0] < 0.95 * responses_s[1]
