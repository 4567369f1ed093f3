"""Judges the simulated boards by figures of the paper to which they were not fitted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.co_optimisation.board.board import Board, Job
from benchmarks.co_optimisation.board.fit import FittedBoard, utilisation
from benchmarks.co_optimisation.board.memory import fit_memory
from benchmarks.co_optimisation.board.paper import (
    BOARD_MB,
    FASTEST_PAIR,
    MO_OVER_D,
    PAIRS,
    PEAK_MB,
    TABLE_V,
    UTILISATION,
    WITHIN,
)
from benchmarks.co_optimisation.board_gpu import job
from benchmarks.co_optimisation.runs import MO, Application, Configuration, D
from benchmarks.co_optimisation.simulation import SIMULATED, BoardKind, Simulation
from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, estimate
from benchmarks.common.rows import measured
from split_infer_ros.buffers.policy import Policy

DRONE = "drone, TX2"
_POLICIES = {D: Policy.DEVICE, MO: Policy.MANAGED}


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the boards predict, and what the paper says.

    Attributes:
        fitted: the boards.
        mo_over_d: MO's time divided by D's on each board, the mean over applications and sizes.
        loads: the GPU's load on each board, by column of Table V, then by configuration.
    """

    fitted: Sequence[FittedBoard]
    mo_over_d: Sequence[float]
    loads: Mapping[str, Mapping[str, Sequence[float]]]

    @classmethod
    def of(
        cls,
        fitted: Sequence[FittedBoard],
        simulated: Simulation,
        applications: Sequence[Application],
        sizes: Sequence[int],
    ) -> Judgement:
        """Predicts the figures on fitted boards, from what these boards served.

        Args:
            fitted: the boards.
            simulated: what the boards served.
            applications: the applications that shared the GPU.
            sizes: the sizes of the input, in bytes.
        """
        loads = {
            f"benchmarks, {kind.value}": {each.value: simulated.load(kind, each) for each in Configuration}
            for kind in BoardKind
        }
        loads[DRONE] = {
            each.value: [utilisation(its.board, [Job(policy, *its.program("YOLO"))]) for its in fitted]
            for each, policy in _POLICIES.items()
        }
        return cls(fitted, [mo_over_d(each.board, applications, sizes) for each in fitted], loads)

    def claims(self) -> list[Claim]:
        """Returns a claim for each figure of the paper: how far the boards' median is from it."""
        name = f"{SIMULATED}, {len(self.fitted)} fits"
        return [
            Claim(
                f"{name}: {what}, distance from the paper's",
                _distance(found, paper),
                "",
                WITHIN,
                Direction.AT_MOST,
                paper=f"{paper:.3g}",
            )
            for what, found, paper in self._figures()
        ]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yields a row for each predicted figure and order, and for each fitted figure of Tables I and II."""
        for what, found, paper in self._figures():
            yield {"what": f"{SIMULATED}, judged: {what}", "paper": paper, **measured(found=found)}
        for name, fastest in FASTEST_PAIR.items():
            yield {
                "what": f"{SIMULATED}, judged: boards on which two {name} end first as in the paper",
                "paper": 1.0,
                "found": float(np.mean([each.fastest_pair(name) == fastest for each in self.fitted])),
            }
        for name in UTILISATION:
            for pair in PAIRS:
                found = [each.found[name][pair] for each in self.fitted]
                policies = "/".join(policy.value for policy in pair)
                yield {
                    "what": f"{SIMULATED}, fitted: load of two {name} under {policies}",
                    "paper": UTILISATION[name][pair],
                    **measured(found=found),
                }
        memory = fit_memory(PEAK_MB)
        for policy, peaks in PEAK_MB.items():
            for count, peak in enumerate(peaks, 1):
                yield {
                    "what": f"{SIMULATED}, fitted: peak of {count} YOLO under {policy.value}, MB",
                    "paper": peak,
                    "found": memory.peak_mb(count, policy),
                    "fails": memory.peak_mb(count, policy) > BOARD_MB,
                }

    def _figures(self) -> Iterator[tuple[str, Sequence[float], float]]:
        yield "MO's time over D's", self.mo_over_d, MO_OVER_D
        for column, by_configuration in TABLE_V.items():
            for configuration, paper in by_configuration.items():
                yield f"GPU load of {column}, {configuration}", self.loads[column][configuration], paper


def mo_over_d(board: Board, applications: Sequence[Application], sizes: Sequence[int]) -> float:
    """Returns an application's time under M divided by its time under D: the mean over applications and sizes."""

    def ms(application: Application, size: int, policy: Policy) -> float:
        return board.run([job(application, size, policy)]).ends_ms[0]

    return float(
        np.mean(
            [
                ms(application, size, Policy.MANAGED) / ms(application, size, Policy.DEVICE)
                for application in applications
                for size in sizes
            ]
        )
    )


def _distance(found: Sequence[float], paper: float) -> Estimate:
    return estimate(lambda values: np.abs(np.median(values, axis=-1) - paper), found)
