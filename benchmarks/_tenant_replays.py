"""Rivals that replay the same trace in each turn, another trace each turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from _tenant_load import Load, Serve
from _tenant_log import Log
from _tenant_trace import at_once, poisson_trace

from split_infer_ros.telemetry.claim import Claim
from split_infer_ros.telemetry.estimate import Samples
from split_infer_ros.telemetry.turns import Contest, rotated
from split_infer_ros.telemetry.usage import Usage

BOUND = "bound"
POISSON, AT_ONCE = "poisson", "three requests"


class Replays:
    """One load, served by all rivals in turns.

    In a turn each rival serves one request of each model at once, twice, and then the turn's Poisson trace. The first
    of these three warms up, as convolutions are packed anew when a rival uses another count of cores.

    Args:
        load: the models.
        rivals: by name.
        part: of sequential capacity at which requests arrive.
        capacity: that sequential execution was measured to have, requests a second.
        requests: of a trace.
        bound: measures the bound once, requests a second.
        conclude: the claims that rest on these replays.

    Attributes:
        part: as given.
        rivals: their names.
        counts: of each rival, executions of each kind in all turns' Poisson traces.
        usage: of memory and processor in these traces.
        contest: to be run; figures are named by ``figure``.
    """

    def __init__(
        self,
        load: Load,
        rivals: Mapping[str, Serve],
        part: float,
        capacity: float,
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
        self._per_second, self._requests = part * capacity, requests

    def samples(self, rival: str, figure: str, what: str = POISSON) -> Samples:
        """A rival's figure in each turn."""
        return np.asarray(self.contest.figures[name_of(rival, figure, what)])

    @property
    def bounds(self) -> Samples:
        """The bound in each turn."""
        return np.asarray(self.contest.figures[BOUND])

    def _turn(self, number: int) -> dict[str, float]:
        models = list(self._load.models)
        trace, few = poisson_trace(models, self._requests, self._per_second, seed=number), at_once(models)
        found: dict[str, float] = {}
        for rival in rotated([*self.rivals, BOUND], number):
            if rival == BOUND:
                found[BOUND] = self._bound()
                continue
            serve = self._serve[rival]
            serve(few, self._load)
            found |= _named(rival, AT_ONCE, serve(few, self._load))
            with self.usage.of(rival):
                log = serve(trace, self._load)
            found |= _named(rival, POISSON, log)
            self.counts[rival].update(log.counts())
        return found


def name_of(rival: str, figure: str, what: str) -> str:
    """The name of a rival's figure in a contest."""
    return f"{what}: {rival}: {figure}"


def _named(rival: str, what: str, log: Log) -> dict[str, float]:
    return {name_of(rival, figure, what): value for figure, value in log.times().items()}
