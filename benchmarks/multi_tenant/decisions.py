"""Times the scheduler's decisions: choosing requests, and removing chosen and late requests from the queue."""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Mapping, Sequence

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import maximum, median
from benchmarks.common.turns import Contest
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.request import LatePolicy, Request, RequestQueue
from split_infer_ros.server.schedule.scheduler import Rules, decide

WINDOWS = (5, 8, 16, 32)
CLAIMED = 1000  # the number of waiting requests in the claims
WAITING = (CLAIMED // 10, CLAIMED, 10 * CLAIMED)
GOAL_US = 50.0
DECISIONS = 10  # decisions of each case in a turn

Case = tuple[int, int, bool]  # window, requests that wait, whether all are late
CASES: tuple[Case, ...] = tuple(itertools.product(WINDOWS, WAITING, (False, True)))


def decision_contest(costs: ExecutionCosts, cases: Sequence[Case] = CASES) -> Contest:
    """Returns a contest that times decisions in each case. Figures are medians in microseconds; ``name_of`` names them.

    Args:
        costs: the costs of the models that have requests.
        cases: the cases to time: the window, the number of waiting requests, and whether all of them are late.
    """
    queues = {case: _TimedQueue(list(costs.alone_s), *case) for case in cases}

    def turn(number: int) -> Mapping[str, float]:
        return {name_of(case): 1e6 * queue.decide_s(costs) for case, queue in queues.items()}

    return Contest("decisions", turn, conclude)


def name_of(case: Case) -> str:
    """Returns the name of a case's figure."""
    window, waiting, late = case
    return f"window {window}, {waiting} waiting, {'all late' if late else 'none late'}"


def conclude(contest: Contest) -> list[Claim]:
    """Returns the claims that a decision takes at most ``GOAL_US`` microseconds with every window.

    One claim is for requests that are not late, the other for requests that all are late.
    """
    claims = []
    for late in (False, True):
        timed = [median(contest.figures[name_of((window, CLAIMED, late))]) for window in WINDOWS]
        name = f"a decision with {CLAIMED:,} waiting, {'all' if late else 'none'} late, the slowest window"
        claims.append(Claim(name, maximum(timed), "us", GOAL_US, Direction.AT_MOST, turn_s=contest.turn_s))
    return claims


class _TimedQueue:
    """A queue that is filled up before each decision."""

    def __init__(self, models: Sequence[str], window: int, waiting: int, late: bool) -> None:
        self._models, self._rules, self._waiting = models, Rules(window), waiting
        self._deadline_s, self._when_late = (-1.0, LatePolicy.DROP) if late else (math.inf, LatePolicy.FINISH)
        self._random, self._numbers, self._queue = random.Random(0), itertools.count(), RequestQueue()

    def decide_s(self, costs: ExecutionCosts) -> float:
        """Returns the median time of some decisions, in seconds."""
        times = []
        for _ in range(DECISIONS):
            self._fill()
            begin = time.perf_counter()
            decision = decide(self._queue, costs, now=0.0, rules=self._rules)
            self._queue.remove((*decision.requests, *decision.late))
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def _fill(self) -> None:
        while len(self._queue) < self._waiting:
            number = next(self._numbers)
            request = Request(
                number,
                tenant=f"tenant {number % 16}",
                virtual_deadline_s=number + self._random.random(),
                model=self._random.choice(self._models),
                arrival_s=0.0,
                deadline_s=self._deadline_s,
                when_late=self._when_late,
            )
            self._queue.add(request)
