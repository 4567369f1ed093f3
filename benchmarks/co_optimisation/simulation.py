"""Applications that share a simulated board under D, MO and CO.

The boards are fitted to the paper and know nothing of the overhead model. The scheduler decides by that model, with the
constants that the package's calibration finds on the board. So the board can contradict the scheduler.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

import numpy as np

from benchmarks.co_optimisation.board.board import Board
from benchmarks.co_optimisation.board.paper import XAVIER_MEMORY
from benchmarks.co_optimisation.board_gpu import BoardGpu, calibrate_board
from benchmarks.co_optimisation.runs import CO, MO, SCHEDULERS, Application, Configuration, D, Scheduler, Served, serve
from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, Samples, estimate, exact
from benchmarks.common.report import Panel
from benchmarks.common.rows import measured
from split_infer_ros.buffers.policy import POLICIES
from split_infer_ros.memory_cost.constants import MachineConstants

SIMULATED = "simulated"
ROUNDS = 3  # of a run; memory stays allocated from one round to the next
LATER = 5  # how many of the applications wait in each round but the first


class BoardKind(Enum):
    """A board of the paper."""

    TX2 = "TX2"
    AGX = "AGX"


ByConfiguration = Mapping[Configuration, Served]
Part = Callable[[ByConfiguration], float]


@dataclass(frozen=True, slots=True)
class BoardResults:
    """How a board served all applications.

    Attributes:
        kind: which board it is.
        served: how the applications were served, by input size in bytes, then by configuration.
    """

    kind: BoardKind
    served: Mapping[int, ByConfiguration]


@dataclass(frozen=True, slots=True)
class Simulation:
    """The results of all boards.

    Attributes:
        boards: the results of each board. All are for the same input sizes.
    """

    boards: Sequence[BoardResults]

    def claims(self) -> list[Claim]:
        """Returns the seven claims about CO.

        Two are about its memory as a multiple of MO's: the median over boards and sizes. A median has an interval,
        because each board is a sample of the boards that agree with the paper's tables. The others are about the worst
        case over all boards and sizes. The worst case is exact: these boards are the same in every run.
        """
        return [
            *(self._memory(kind) for kind in BoardKind),
            self._worst("memory, times D's, at most", _times(D, lambda served: served.memory_bytes)),
            self._worst("time for all, times D's, at most", _times(D, lambda served: served.total_ms)),
            self._worst("mean response, times D's, at most", _times(D, lambda served: served.response_ms), "0.79 x"),
            self._worst("time, times the better one's, at most", times_the_better),
            self._worst(
                "GPU load, times MO's, at least",
                _times(MO, lambda served: served.utilisation),
                "1.10 and 1.33 x",
                Direction.AT_LEAST,
            ),
        ]

    def _memory(self, kind: BoardKind) -> Claim:
        value = times_managed_memory([each for each in self.boards if each.kind is kind])
        return Claim(
            f"{self._name}, {kind.value}: CO's memory, times MO's, median", value, "x", 1.15, Direction.AT_MOST
        )

    def _worst(self, what: str, part: Part, paper: str = "", direction: Direction = Direction.AT_MOST) -> Claim:
        parts = [part(served) for board in self.boards for served in board.served.values()]
        value = max(parts) if direction is Direction.AT_MOST else min(parts)
        return Claim(f"{self._name}: CO's {what}", exact(value), "x", 1.0, direction, paper=paper)

    @property
    def _name(self) -> str:
        return f"{SIMULATED}, {len(self.boards)} boards"

    def load(self, kind: BoardKind, configuration: Configuration) -> list[float]:
        """Returns the share of the time for which each board's gauge counts its GPU as loaded, over all sizes."""
        loads = []
        for board in self.boards:
            if board.kind is kind:
                served = [each[configuration] for each in board.served.values()]
                total_ms = sum(each.total_ms for each in served)
                loads.append(sum(each.utilisation * each.total_ms for each in served) / total_ms)
        return loads

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each kind of board, size and configuration, and a row with the share of runs with pairs.

        The figures of a row are medians over the boards.
        """
        rows: list[dict[str, Any]] = []
        for kind in BoardKind:
            boards = [board for board in self.boards if board.kind is kind]
            for size in boards[0].served if boards else ():
                for configuration in Configuration:
                    served = [board.served[size][configuration] for board in boards]
                    rows.append(
                        {
                            "what": SIMULATED,
                            "kind": kind.value,
                            "bytes": size,
                            "configuration": configuration.value,
                            **measured(
                                memory_bytes=[each.memory_bytes for each in served],
                                total_ms=[each.total_ms for each in served],
                                response_ms=[each.response_ms for each in served],
                                utilisation=[each.utilisation for each in served],
                            ),
                            "with_pairs": _share_with_pairs(served),
                        }
                    )
        co_runs = [served[CO] for board in self.boards for served in board.served.values()]
        return [*rows, {"what": f"{SIMULATED}, runs of CO with pairs", "with_pairs": _share_with_pairs(co_runs)}]

    def panels(self) -> list[Panel]:
        """Returns the panels of Fig. 9 and Table V. A sample is the mean over the sizes on one board."""
        return [
            self._panel("memory, D = 1", "", lambda served, its: served[its].memory_bytes / served[D].memory_bytes),
            self._panel(
                "mean response, D = 1", "", lambda served, its: served[its].response_ms / served[D].response_ms
            ),
            self._panel("GPU load", "%", lambda served, its: 100 * served[its].utilisation),
        ]

    def _panel(self, title: str, unit: str, part: Callable[[ByConfiguration, Configuration], float]) -> Panel:
        samples = {
            configuration.value: [
                float(np.mean([part(served, configuration) for served in board.served.values()]))
                for board in self.boards
            ]
            for configuration in Configuration
        }
        return Panel(f"{title} ({SIMULATED})", unit, samples)


def simulate(
    boards: Sequence[Board],
    applications: Sequence[Application],
    sizes: Sequence[int],
    schedulers: Mapping[Configuration, Scheduler] = SCHEDULERS,
) -> Simulation:
    """Simulates all configurations at all sizes, on each board as a TX2 and with an AGX's memory.

    Args:
        boards: boards that stand for a TX2.
        applications: the applications that share the GPU.
        sizes: the sizes of the input, in bytes.
        schedulers: the scheduler of each configuration.
    """
    results = []
    for seed, board in enumerate(boards):
        for kind, factor in ((BoardKind.TX2, 1.0), (BoardKind.AGX, XAVIER_MEMORY)):
            its, served = board.faster_memory(factor), {}
            constants = calibrate_board(its)
            for size in sizes:
                run = _Run(its, constants, applications, size, seed)
                served[size] = {each: run.serve(schedulers[each]) for each in Configuration}
            results.append(BoardResults(kind, served))
    return Simulation(results)


class _Run:
    """Several rounds at one input size. In the first round all applications wait, in each later one a drawn few."""

    def __init__(
        self, board: Board, constants: MachineConstants, applications: Sequence[Application], size: int, seed: int
    ) -> None:
        self._board, self._constants, self._size = board, constants, size
        self._by_name = {application.name: application for application in applications}
        gpu, draw = self._gpu(), Random(seed)
        tasks = [application.task(size, gpu.execution_ms(application)) for application in applications]
        few = min(LATER, len(tasks))
        self._rounds = [tasks, *(draw.sample(tasks, few) for _ in range(ROUNDS - 1))]

    def _gpu(self) -> BoardGpu:
        return BoardGpu(self._board, self._by_name, self._size)

    def serve(self, scheduler: Scheduler) -> Served:
        """Serves all rounds. Its utilisation is what the board's gauge shows, and its memory what is allocated."""
        gpu = self._gpu()
        rounds = [serve(scheduler, tasks, gpu, self._constants, POLICIES) for tasks in self._rounds]
        total_ms = sum(each.total_ms for each in rounds)
        return Served(
            total_ms,
            statistics.fmean(each.response_ms for each in rounds),
            gpu.load_ms / total_ms,
            gpu.memory_bytes,
            sum(each.paired for each in rounds),
        )


def times_managed_memory(boards: Sequence[BoardResults]) -> Estimate:
    """Returns CO's memory divided by MO's: the median over boards and sizes. The boards are the samples."""
    by_size: dict[int, list[float]] = {}
    for board in boards:
        for size, served in board.served.items():
            by_size.setdefault(size, []).append(served[CO].memory_bytes / served[MO].memory_bytes)

    def middle(*parts: Samples) -> Samples:
        return np.median(np.concatenate(parts, axis=-1), axis=-1)

    return estimate(middle, *(by_size or {0: []}).values())


def times_the_better(served: ByConfiguration) -> float:
    """Returns CO's time for all applications divided by that of D or MO, whichever is shorter."""
    return served[CO].total_ms / min(served[D].total_ms, served[MO].total_ms)


def _times(other: Configuration, figure: Callable[[Served], float]) -> Part:
    """Returns CO's figure divided by that of another configuration, as a function of what was served."""
    return lambda served: figure(served[CO]) / figure(served[other])


def _share_with_pairs(served: Sequence[Served]) -> float:
    return float(np.mean([each.paired > 0 for each in served]))
