"""Applications that share this machine's GPU. At each input size, the configurations D, MO and CO take turns."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from benchmarks.co_optimisation.real_gpu import RealGpu
from benchmarks.co_optimisation.runs import CO, MO, SCHEDULERS, Application, Configuration, D, serve
from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, Samples, estimate, exact, maximum, minimum, ratio
from benchmarks.common.report import Panel
from benchmarks.common.rows import measured
from benchmarks.common.turns import Contest, rotated
from benchmarks.common.usage import Usage
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.constants import MachineConstants

MEASURED = "measured"
EXECUTION_ROUNDS = 11  # of an application alone, before the turns begin
TOTAL, RESPONSE, UTILISATION = "total_ms", "response_ms", "utilisation"


class SizeContest:
    """Runs all applications at one input size, under each configuration.

    Args:
        size: the size of the input, in bytes.
        applications: the applications that share the GPU.
        gpu: runs the applications.
        constants: the constants of this machine, by which the scheduler decides.
        legal: the memory policies that this GPU allows.

    Attributes:
        size: the size of the input, in bytes.
        memory_bytes: the bytes of memory of all applications, by configuration. They are the same in every turn,
            because decisions depend on nothing that changes.
        contest: the contest of the configurations.
    """

    def __init__(
        self,
        size: int,
        applications: Sequence[Application],
        gpu: RealGpu,
        constants: MachineConstants,
        legal: Collection[Policy],
    ) -> None:
        self.size = size
        self._gpu, self._constants, self._legal = gpu, constants, legal
        self._tasks = [each.task(size, gpu.execution_ms(each, EXECUTION_ROUNDS)) for each in applications]
        self._usage = Usage()
        self.memory_bytes: dict[Configuration, int] = {}
        self._paired: dict[Configuration, int] = {}
        self.contest = Contest(f"{size / 2**20:g} MiB", self._turn, lambda _: conclude([self]))
        self._turn(0)  # memory is allocated the first time

    def _turn(self, number: int) -> dict[str, float]:
        figures = {}
        for name in rotated([configuration.value for configuration in Configuration], number):
            configuration = Configuration(name)
            with self._usage.of(name):
                served = serve(SCHEDULERS[configuration], self._tasks, self._gpu, self._constants, self._legal)
            self.memory_bytes[configuration], self._paired[configuration] = served.memory_bytes, served.paired
            for what in (TOTAL, RESPONSE, UTILISATION):
                figures[figure(configuration, what)] = getattr(served, what)
        return figures

    def of(self, configuration: Configuration, what: str) -> list[float]:
        """Returns a configuration's figure in each turn."""
        return self.contest.figures[figure(configuration, what)]

    def times(self, what: str, than: Configuration) -> Estimate:
        """Returns CO's figure divided by that of the configuration ``than`` in the same turn."""
        return ratio(self.of(CO, what), self.of(than, what))

    def times_the_better(self) -> Estimate:
        """Returns CO's time for all applications divided by that of D or MO, whichever has the shorter median."""

        def part(ours: Samples, one: Samples, other: Samples) -> Any:
            better = np.minimum(np.median(one, axis=-1), np.median(other, axis=-1))
            return np.median(ours, axis=-1) / better

        return estimate(part, *(self.of(configuration, TOTAL) for configuration in (CO, D, MO)))

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each configuration."""
        return [
            {
                "what": MEASURED,
                "bytes": self.size,
                "configuration": configuration.value,
                "memory_bytes": self.memory_bytes[configuration],
                **measured(**{what: self.of(configuration, what) for what in (TOTAL, RESPONSE, UTILISATION)}),
                "paired": self._paired[configuration],
                **self._usage.row(configuration.value),
            }
            for configuration in Configuration
        ]


def figure(configuration: Configuration, what: str) -> str:
    """Returns the name of a figure of a contest: TOTAL, RESPONSE or UTILISATION under a configuration."""
    return f"{configuration.value} {what}"


def conclude(contests: Sequence[SizeContest]) -> list[Claim]:
    """Returns the claims about CO.

    One is about its memory as a multiple of MO's: the median over the sizes. The others are about its times and its GPU
    utilisation, at the worst size. Memory follows from the policies, and no policy takes more than D does. So CO's
    memory as a multiple of D's is no claim.
    """
    turn_s = sum(each.contest.turn_s for each in contests)
    parts = [each.memory_bytes[CO] / each.memory_bytes[MO] for each in contests]

    def worst(
        what: str, goal: float, direction: Direction, paper: str, part: Callable[[SizeContest], Estimate]
    ) -> Claim:
        choose = maximum if direction is Direction.AT_MOST else minimum
        value = choose([part(each) for each in contests])
        return Claim(f"{MEASURED}: CO's {what}", value, "x", goal, direction, turn_s=turn_s, paper=paper)

    return [
        Claim(
            f"{MEASURED}: CO's memory, times MO's, median",
            exact(statistics.median(parts)),
            "x",
            1.15,
            Direction.AT_MOST,
        ),
        worst("time for all, times D's, at most", 1.0, Direction.AT_MOST, "", lambda contest: contest.times(TOTAL, D)),
        worst(
            "mean response, times D's, at most",
            1.0,
            Direction.AT_MOST,
            "0.79 x",
            lambda contest: contest.times(RESPONSE, D),
        ),
        worst("time, times the better one's, at most", 1.0, Direction.AT_MOST, "", SizeContest.times_the_better),
        worst(
            "GPU utilisation, times MO's, at least",
            1.0,
            Direction.AT_LEAST,
            "1.10 and 1.33 x",
            lambda contest: contest.times(UTILISATION, MO),
        ),
    ]


def panels(contests: Sequence[SizeContest]) -> list[Panel]:
    """Returns the panels of Fig. 9 and Table V.

    They show the memory at each size divided by that of D, and the turns of the largest size.
    """
    largest = max(contests, key=lambda each: each.size)
    memory, response, busy = {}, {}, {}
    for configuration in Configuration:
        name = configuration.value
        memory[name] = [each.memory_bytes[configuration] / each.memory_bytes[D] for each in contests]
        response[name] = largest.of(configuration, RESPONSE)
        busy[name] = [100 * part for part in largest.of(configuration, UTILISATION)]
    return [
        Panel("memory, D = 1", "", memory),
        Panel(f"mean response time, {largest.contest.name}", "ms", response),
        Panel(f"GPU utilisation, {largest.contest.name}", "%", busy),
    ]
