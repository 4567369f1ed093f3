"""Lets rivals replay traces of requests. In a turn, all rivals replay the same trace; each turn has another trace."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import Samples
from benchmarks.common.turns import Contest, rotated
from benchmarks.common.usage import Usage
from benchmarks.multi_tenant.load import Load, Serve
from benchmarks.multi_tenant.log import Log
from benchmarks.multi_tenant.rivals import SEQUENTIAL
from benchmarks.multi_tenant.trace import at_once, poisson_trace
from split_infer_ros.server.costs.cost_measurer import WARM_UPS

BOUND = "bound"
POISSON, AT_ONCE = "poisson", "three requests"
CAPACITIES, REQUESTS_OF_EACH = 3, 4  # traces that show sequential capacity before the first turn; their requests


class Replays:
    """Lets all rivals serve requests at one rate, in turns.

    In a turn, each rival serves one request of each model at once, three times. Then it serves the Poisson trace of the
    turn. The first two times are warm-ups and are not measured: convolutions are packed when a shape and a number of
    threads come for the second time.

    The rate of requests is a multiple of sequential capacity: the images that sequential execution computes in a second
    while it serves such traces. Capacity is the median of all turns so far. Some traces before the first turn arrive at
    once.

    Args:
        load: the models.
        rivals: the rivals, by name.
        part: the rate of requests divided by sequential capacity.
        requests: the number of requests in a trace.
        bound: measures the bound once, in requests per second.
        conclude: returns the claims that these replays decide.

    Attributes:
        part: the rate of requests divided by sequential capacity.
        rivals: the names of the rivals.
        counts: for each rival, the executions of each kind in the Poisson traces of all turns.
        usage: memory and processor time of each rival in the Poisson traces.
        contest: the contest of the rivals. ``name_of`` returns the names of its figures.
    """

    def __init__(
        self,
        load: Load,
        rivals: Mapping[str, Serve],
        part: float,
        requests: int,
        bound: Callable[[], float],
        conclude: Callable[[Replays], Sequence[Claim]],
    ) -> None:
        self.part = part
        self.rivals = list(rivals)
        self.counts = {name: Counter[str]() for name in rivals}
        self.usage = Usage()
        self.contest = Contest(f"{part:g} times capacity", self._turn, lambda _: conclude(self))
        self._load, self._serve, self._bound = load, rivals, bound
        self._requests = requests
        self._capacities: list[float] = []

    def samples(self, rival: str, figure: str, what: str = POISSON) -> Samples:
        """Returns a rival's figure in each turn.

        Args:
            rival: the name of the rival.
            figure: the name of the figure, as in ``Log.times``.
            what: the trace that was served: POISSON or AT_ONCE.
        """
        return np.asarray(self.contest.figures[name_of(rival, figure, what)])

    @property
    def bounds(self) -> Samples:
        """The bound in each turn, in requests per second."""
        return np.asarray(self.contest.figures[BOUND])

    def _turn(self, number: int) -> dict[str, float]:
        models = list(self._load.models)
        few = at_once(models)
        if not self._capacities:
            waiting = poisson_trace(models, REQUESTS_OF_EACH * len(models), math.inf)
            logs = [self._serve[SEQUENTIAL](waiting, self._load) for _ in range(WARM_UPS + CAPACITIES)]
            self._capacities = [1 / log.times()["execution_mean_s"] for log in logs[WARM_UPS:]]
        per_second = self.part * statistics.median(self._capacities)
        trace = poisson_trace(models, self._requests, per_second, seed=number)
        figures: dict[str, float] = {}
        for rival in rotated([*self.rivals, BOUND], number):
            if rival == BOUND:
                figures[BOUND] = self._bound()
                continue
            serve = self._serve[rival]
            for _ in range(WARM_UPS):
                serve(few, self._load)
            figures |= _named(rival, AT_ONCE, serve(few, self._load))
            with self.usage.of(rival):
                log = serve(trace, self._load)
            figures |= _named(rival, POISSON, log)
            self.counts[rival].update(log.counts())
        self._capacities.append(1 / figures[name_of(SEQUENTIAL, "execution_mean_s", POISSON)])
        return figures


def name_of(rival: str, figure: str, what: str) -> str:
    """Returns the name of a rival's figure in a contest. ``what`` is the trace that was served: POISSON or AT_ONCE."""
    return f"{what}: {rival}: {figure}"


def _named(rival: str, what: str, log: Log) -> dict[str, float]:
    return {name_of(rival, figure, what): value for figure, value in log.times().items()}
