"""Fits the simulated board to Tables I and II of paper 003.

Table II has nine figures, and a board has more costs than nine figures can tell. So the fit begins at drawn costs and
stays near them where the table does not decide. Each start gives another board that agrees with the table as well. What
these boards have in common is what the table says, and where they differ the table says nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.co_optimisation.board.board import Board, Job, Launches
from benchmarks.co_optimisation.board.paper import KERNELS, MEMORY_MS_PER_BYTE, PAIRS, UTILISATION
from split_infer_ros.buffers.policy import Policy

MIB = 2**20
ROUNDED = 0.01  # the table's figures are whole percents
NEAR = 1.0  # how far the fit may go from its start, as the logarithm of a cost: a factor of 2.7
MOST_LAUNCHES = 64  # the fit joins kernels so that there are at most so many, because shares of the time stay the same
# The range from which a start is drawn. Times are in ms, and bytes are those of the programs in Table II.
RANGES = {
    "launch_ms": (0.002, 0.02),
    "kernel_ms": (0.005, 0.05),
    "copy_start_ms": (0.01, 0.1),
    "copy_slowness": (1.0, 8.0),  # how many times longer a copy takes than reading and writing at full speed
    "mapping_part": (0.05, 0.5),  # of the time of a copy; pages are not moved, so it is less than 1
    "cpu_flush_ms": (0.01, 0.1),
    "gpu_flush_ms": (0.002, 0.02),
    "cache_speed": (2.0, 6.0),  # how many times faster the cache is than the memory
    "NW_bytes": (1.0 * MIB, 16.0 * MIB),
    "Gaussian_bytes": (0.05 * MIB, 1.0 * MIB),
    "YOLO_bytes": (1.0 * MIB, 16.0 * MIB),
    "YOLO_kernel_ms": (0.05, 0.5),
    "uncached_slowness": (1.0, 10.0),  # how many times longer the CPU takes for a byte without its cache
}
Costs = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class FittedBoard:
    """A board that agrees with Table II.

    Attributes:
        board: the board, a TX2.
        costs: what was fitted.
        found: the utilisation of each pair in Table II on this board, in the table's order.
    """

    board: Board
    costs: Costs
    found: Mapping[str, Mapping[tuple[Policy, Policy], float]]

    def fastest_pair(self, name: str) -> tuple[Policy, Policy]:
        """Returns the policies under which two instances of a program in Table II end first."""
        nbytes, launches = self.program(name)
        return min(PAIRS, key=lambda pair: max(self.board.run([Job(each, nbytes, launches) for each in pair]).ends_ms))

    @property
    def residuals(self) -> list[float]:
        """What the board's utilisation is more than the table's."""
        return [self.found[name][pair] - UTILISATION[name][pair] for name in UTILISATION for pair in PAIRS]

    def program(self, name: str) -> tuple[float, Sequence[Launches]]:
        """Returns the bytes and the kernels of a program in Table II."""
        return program(name, self.costs)


def board_of(costs: Costs) -> Board:
    """Returns the board that has fitted costs."""
    copy_ms_per_byte = 2 * MEMORY_MS_PER_BYTE * costs["copy_slowness"]
    return Board(
        memory_ms_per_byte=MEMORY_MS_PER_BYTE,
        cache_ms_per_byte=MEMORY_MS_PER_BYTE / costs["cache_speed"],
        copy_ms_per_byte=copy_ms_per_byte,
        mapping_ms_per_byte=copy_ms_per_byte * costs["mapping_part"],
        uncached_ms_per_byte=MEMORY_MS_PER_BYTE * (costs["uncached_slowness"] - 1),
        **{name: costs[name] for name in ("copy_start_ms", "cpu_flush_ms", "gpu_flush_ms", "launch_ms", "kernel_ms")},
    )


def program(name: str, costs: Costs) -> tuple[float, Sequence[Launches]]:
    """Returns the bytes and the kernels of a program in Table II.

    NW's kernels share its data. Those of Gaussian go over a third of it in the mean. YOLO's take as long as is fitted.
    """
    nbytes, count = costs[f"{name}_bytes"], KERNELS[name]
    if name == "YOLO":
        return nbytes, (Launches(count, kernel_ms=costs["YOLO_kernel_ms"]),)
    return nbytes, (Launches(count, nbytes=nbytes / (count if name == "NW" else 3)),)


def utilisation(board: Board, jobs: Sequence[Job]) -> float:
    """Returns the share of the time for which the gauge counts the GPU as loaded, until all jobs have ended."""
    trace = board.run(jobs)
    return trace.load_ms / max(trace.ends_ms)


def fit(seed: int) -> FittedBoard:
    """Fits a board to Table II. Equal seeds give equal boards."""
    from scipy.optimize import least_squares  # imported here because the import is slow

    draw = random.Random(seed)
    start = np.array([draw.uniform(math.log(low), math.log(high)) for low, high in RANGES.values()])

    def misses(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        found = _table_ii(_costs(logs), joined=True)
        table = [found[name][pair] - UTILISATION[name][pair] for name in UTILISATION for pair in PAIRS]
        return np.concatenate([np.array(table) / ROUNDED, (logs - start) / NEAR])

    costs = _costs(least_squares(misses, start, diff_step=1e-3, max_nfev=20).x)
    return FittedBoard(board_of(costs), costs, _table_ii(costs, joined=False))


def _costs(logs: NDArray[np.float64]) -> Costs:
    return dict(zip(RANGES, np.exp(logs).tolist(), strict=True))


def _table_ii(costs: Costs, *, joined: bool) -> dict[str, dict[tuple[Policy, Policy], float]]:
    found: dict[str, dict[tuple[Policy, Policy], float]] = {}
    for name in UTILISATION:
        nbytes, launches = program(name, costs)
        times = max(1, -(-KERNELS[name] // MOST_LAUNCHES)) if joined else 1
        board = _slower_kernels(board_of(costs), times)
        joint = [
            Launches(each.count // times, each.kernel_ms * times, each.nbytes * times, each.cached_bytes * times)
            for each in launches
        ]
        found[name] = {pair: utilisation(board, [Job(policy, nbytes, joint) for policy in pair]) for pair in PAIRS}
    return found


def _slower_kernels(board: Board, times: int) -> Board:
    """Returns the board on which a kernel stands for several."""
    return replace(
        board,
        launch_ms=board.launch_ms * times,
        kernel_ms=board.kernel_ms * times,
        gpu_flush_ms=board.gpu_flush_ms * times,
    )
