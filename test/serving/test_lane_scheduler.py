"""What begins where: on timelines drawn by hand, and whatever comes."""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.serving.execution_costs import ExecutionCosts
from split_infer_ros.serving.execution_modes import ExecutionModes
from split_infer_ros.serving.lane_scheduler import LaneScheduler, Turn
from split_infer_ros.serving.request import DROP, FINISH, Request, RequestQueue, turn_s
from split_infer_ros.serving.scheduler import Rules

# On all cores an a takes 1, a b takes 4; on one of two lanes 1.5 and 7.
PARAMETERS = {"a": 1, "b": 1}
WHOLE = ExecutionCosts(PARAMETERS, {"a": {1: 1.0}, "b": {1: 4.0}})
WAYS = ExecutionModes(WHOLE, 2, ExecutionCosts(PARAMETERS, {"a": {1: 1.5}, "b": {1: 7.0}}))
RULES = Rules(window=5)


@dataclass
class Timeline:
    """Serves requests as they come; each execution takes what it costs.

    Attributes:
        drawn: of each execution where it was (A: with all cores), when it began and ended, and for whom.
        late: those that were dropped.
        ended: of each request when it began or was dropped.
        ahead: of each request who was ever before it in the queue, and (negative) which executions it found under way.
    """

    coming: list[Request]
    ways: ExecutionModes = WAYS
    rules: Rules = RULES
    drawn: list[tuple[int | str, float, float, list[int]]] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    ended: dict[int, float] = field(default_factory=dict)
    ahead: dict[int, set[int]] = field(default_factory=dict)
    queue: RequestQueue = field(default_factory=RequestQueue)

    def run(self) -> list[tuple[int | str, float, float, list[int]]]:
        lane_scheduler, queue = LaneScheduler(self.ways.lanes), self.queue
        coming, under_way, now = sorted(self.coming, key=lambda request: request.arrival_s), dict[Turn, float](), 0.0
        while coming or under_way or len(queue):
            while coming and coming[0].arrival_s <= now:
                self._arrive(coming.pop(0), len(under_way))
            while True:
                turn = lane_scheduler.choose(queue, self.ways, now, self.rules)
                queue.remove((*turn.decision.requests, *turn.decision.late))
                self.late += [request.number for request in turn.decision.late]
                self.ended |= {gone.number: now for gone in (*turn.decision.requests, *turn.decision.late)}
                if turn.decision.batches:
                    lane_scheduler.begin(turn, now)
                    under_way[turn] = now + turn.seconds
                    numbers = [request.number for request in turn.decision.requests]
                    self.drawn.append(("A" if turn.lane is None else turn.lane, now, under_way[turn], numbers))
                elif not turn.decision.late:
                    break
            assert under_way or coming or not len(queue), "idle, though some wait"
            now = min([*under_way.values(), *(request.arrival_s for request in coming[:1])], default=now)
            for turn in [turn for turn, end in under_way.items() if end <= now]:
                lane_scheduler.end(turn)
                del under_way[turn]
        assert lane_scheduler.is_idle
        return self.drawn

    def _arrive(self, request: Request, under_way: int) -> None:
        self.queue.add(request)
        order = [waiting.number for waiting in self.queue[:]]
        place = order.index(request.number)
        self.ahead[request.number] = {*order[:place], *range(-under_way, 0)}
        for number in order[place + 1 :]:
            self.ahead[number].add(request.number)

    def waited_in_parts_of_the_bound(self) -> float:
        """The longest wait of any request, where 1 is what ``LaneScheduler`` promises to it."""
        longest_s = max((end - begin for _, begin, end, _ in self.drawn), default=0.0)
        waits_s = {request.number: self.ended[request.number] - request.arrival_s for request in self.coming}
        bounds_s = {number: (2 * len(ahead) + 1) * longest_s for number, ahead in self.ahead.items()}
        return max((waits_s[number] / bounds_s[number] for number in waits_s if waits_s[number]), default=0.0)


def requests(*rows: tuple[str, str, float] | tuple[str, str, float, float, str]) -> list[Request]:
    """Tenant, model and arrival; and a deadline and what then, if there is one."""
    found = []
    for number, (tenant, model, arrival, *rest) in enumerate(rows):
        deadline, when_late = rest or (math.inf, FINISH)
        found.append(Request(number, tenant, model, arrival, deadline, arrival, when_late))  # type: ignore[arg-type]
    return found


def test_one_alone_has_all_cores_and_two_have_a_lane_each() -> None:
    coming = requests(("1", "a", 0.0), ("1", "a", 5.0), ("2", "a", 5.0))
    assert Timeline(coming).run() == [("A", 0.0, 1.0, [0]), (0, 5.0, 6.5, [1]), (1, 5.0, 6.5, [2])]


def test_who_comes_while_all_cores_are_taken_waits_and_then_lanes_begin() -> None:
    coming = requests(("1", "b", 0.0), ("2", "a", 1.0), ("3", "a", 1.0), ("4", "a", 1.0))
    assert Timeline(coming).run() == [
        ("A", 0.0, 4.0, [0]), (0, 4.0, 5.5, [1]), (1, 4.0, 5.5, [2]), ("A", 5.5, 6.5, [3])
    ]  # fmt: skip


def test_a_lane_that_is_free_takes_what_is_next_but_nobody_overtakes_his_own() -> None:
    coming = requests(("1", "b", 0.0), ("2", "b", 0.0), ("1", "a", 0.5), ("3", "a", 1.0), ("2", "a", 1.0))
    many = requests(*(("4", "a", 0.0) for _ in range(3)))
    assert Timeline(coming).run()[:3] == [(0, 0.0, 7.0, [0]), (1, 0.0, 7.0, [1]), (0, 7.0, 8.5, [2])]
    assert Timeline(many, rules=Rules(most=1)).run() == [
        (0, 0.0, 1.5, [0]), (0, 1.5, 3.0, [1]), ("A", 3.0, 4.0, [2])
    ], "one lane stays idle, as there is but one camera"  # fmt: skip


def test_whose_deadline_only_all_cores_can_meet_gets_them() -> None:
    """Two lanes are at work until 1.5; then the last one is done at 2.5 with all cores, at 3 on a lane."""
    coming = requests(("1", "a", 0.0), ("2", "a", 0.0), ("4", "b", 1.2), ("3", "a", 1.1, 2.55, DROP))
    assert Timeline(coming).run()[2] == ("A", 1.5, 2.5, [3])


def test_lanes_wait_for_whose_deadline_needs_all_cores_only_if_that_is_in_time() -> None:
    lane_scheduler = LaneScheduler(2)
    first = lane_scheduler.choose(_queue(requests(("1", "b", 0.0), ("2", "b", 0.0))), WAYS, 0.0, Rules(most=1))
    lane_scheduler.begin(first, 0.0)
    assert (first.lane, first.seconds) == (0, 7.0)

    def choose(now: float, deadline: float) -> Turn:
        return lane_scheduler.choose(_queue(requests(("3", "a", now, deadline, DROP))), WAYS, now, RULES)

    assert choose(1.0, 2.4).decision.late
    assert choose(1.0, 2.6).lane == 1
    waits = choose(6.8, 8.2).decision
    assert not waits.batches
    assert not waits.late
    lane_scheduler.end(first)
    together = choose(7.0, 8.2)
    assert together.decision.batches
    assert together.lane is None


def test_who_is_behind_the_first_is_not_late_yet_where_all_cores_would_be_in_time() -> None:
    coming = requests(("1", "b", 0.0), ("2", "b", 0.0), ("4", "a", 0.0, 1.2, DROP))
    queue = _queue(coming)
    turn = LaneScheduler(2).choose(queue, WAYS, 0.0, RULES)
    assert turn.lane == 0
    assert turn.decision.late == ()
    queue.remove(coming[:2])
    assert LaneScheduler(2).choose(queue, WAYS, 0.0, RULES).lane is None
    line = Timeline(coming)
    line.run()
    assert line.late == [2], "both lanes were at work"


def test_where_lanes_serve_less_all_cores_take_turns() -> None:
    slow = ExecutionModes(WHOLE, 2, ExecutionCosts(PARAMETERS, {"a": {1: 2.1}, "b": {1: 8.0}}))
    coming = requests(("1", "a", 0.0), ("2", "a", 0.0), ("3", "b", 0.0))
    assert {where for where, *_ in Timeline(coming, slow).run()} == {"A"}


def test_where_there_is_one_way_so_many_may_be_given_ahead() -> None:
    ways, lane_scheduler = ExecutionModes(WHOLE), LaneScheduler(depth=2)
    queue = _queue(requests(("1", "a", 0.0), ("2", "a", 0.0), ("3", "b", 0.0)))
    turns = []
    while (turn := lane_scheduler.choose(queue, ways, 0.0, Rules(most=1, fuse=False))).decision.batches:
        queue.remove(turn.decision.requests)
        lane_scheduler.begin(turn, 0.0)
        turns.append(turn)
    assert [turn.lane for turn in turns] == [None, None]
    lane_scheduler.end(turns[0])
    assert lane_scheduler.choose(queue, ways, 0.0, RULES).decision.requests


def _queue(coming: list[Request]) -> RequestQueue:
    queue = RequestQueue()
    for request in coming:
        queue.add(request)
    return queue


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


@given(COMING, st.integers(0, 4), st.integers(1, 8), st.floats(1.0, 2.5))
def test_whatever_comes_each_is_decided_once_and_in_the_order_of_its_camera(
    rows: list[tuple[str, str, float, float, str]], lanes: int, window: int, slower: float
) -> None:
    lane = ExecutionCosts(PARAMETERS, {model: {1: slower * seconds[1]} for model, seconds in WHOLE.alone_s.items()})
    coming = requests(*sorted(rows, key=lambda row: row[2]))
    line = Timeline(
        coming, ExecutionModes(WHOLE, lanes, lane) if lanes else ExecutionModes(WHOLE), Rules(window, most=2)
    )
    drawn = line.run()
    served = [number for *_, numbers in drawn for number in numbers]
    assert sorted([*served, *line.late]) == [request.number for request in coming]
    assert all(coming[number].when_late == DROP for number in line.late)
    ends: dict[str, float] = defaultdict(float)
    order: dict[str, int] = defaultdict(lambda: -1)
    for _, begin, end, numbers in drawn:
        for tenant in {coming[number].tenant for number in numbers}:
            assert begin >= ends[tenant], "two of one camera's on two lanes"
            ends[tenant] = end
        for number in sorted(numbers):
            assert order[coming[number].tenant] < number, "one overtook its own"
            order[coming[number].tenant] = number
    for where, begin, end, _ in drawn:
        beside = [other for other, start, stop, _ in drawn if start < end and begin < stop]
        assert beside.count(where) == 1
        assert beside == ["A"] or "A" not in beside, "all cores, and a lane"


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
    now, found = 0.0, []
    for number, (tenant, model, gap, patience, priority, when_late) in enumerate(draw(st.lists(ROWS, max_size=40))):
        now += gap
        turn = turn_s(now, patience, priority)
        found.append(Request(number, tenant, model, now, now + patience, turn, when_late))
    return found


@given(floods(), st.integers(1, 4), st.integers(1, 8), st.integers(1, 4), st.floats(1.0, 2.5))
def test_nobody_starves_whatever_comes_and_however_many_lanes_there_are(
    coming: list[Request], lanes: int, window: int, most: int, slower: float
) -> None:
    lane = ExecutionCosts(PARAMETERS, {model: {1: slower * seconds[1]} for model, seconds in WHOLE.alone_s.items()})
    line = Timeline(coming, ExecutionModes(WHOLE, lanes, lane), Rules(window, most))
    line.run()
    assert line.waited_in_parts_of_the_bound() <= 1 + 1e-9


def test_a_lane_that_takes_the_newest_first_would_starve_the_patient() -> None:
    """The bound above is one: what comes behind the first breaks it where lanes serve that instead."""

    class Newest(RequestQueue):
        def __iter__(self) -> Iterator[Request]:
            return reversed(self[:])

    flood = [Request(number, str(number), "a", 0.5 * number, turn_s=0.5 * number) for number in range(80)]
    fair, unfair = Timeline(list(flood), rules=Rules(1)), Timeline(list(flood), rules=Rules(1), queue=Newest())
    for line in (fair, unfair):
        line.run()
    assert fair.waited_in_parts_of_the_bound() <= 1
    assert unfair.waited_in_parts_of_the_bound() > 1


def test_at_half_of_capacity_a_lane_for_each_would_begin_sooner_and_end_later() -> None:
    """Who is alone has all cores, though whoever comes next waits for them: on average all are done sooner."""

    class AlwaysLanes(ExecutionModes):
        def sooner_together(self, waiting: Sequence[Request], more_come: bool = False) -> bool:
            return False

    chance, now, coming = random.Random(0), 0.0, []
    for number in range(500):
        now += chance.expovariate(0.5 * 2 / (1.0 + 4.0))
        coming.append(Request(number, str(number), chance.choice("ab"), now, turn_s=now))
    delays_s, responses_s = [], []
    for ways in (WAYS, AlwaysLanes(WAYS.whole, WAYS.lanes, WAYS.lane)):
        drawn = Timeline(list(coming), ways).run()
        served = [(begin, end, coming[number].arrival_s) for _, begin, end, own in drawn for number in own]
        delays_s.append(statistics.fmean(begin - arrival for begin, _, arrival in served))
        responses_s.append(statistics.fmean(end - arrival for _, end, arrival in served))
    assert delays_s[1] < delays_s[0]
    assert responses_s[0] < 0.95 * responses_s[1]
