"""The contest of one model: its pipelines on two cores, and what was predicted of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import Estimate, estimate, exact, maximum, ratio
from benchmarks.common.rows import in_ms, measured
from benchmarks.common.turns import Contest, rotated
from benchmarks.demand_layering import child
from benchmarks.demand_layering.claims import JITTER, added_ms, prediction_error, prediction_of
from benchmarks.demand_layering.rivals import load_once
from benchmarks.demand_layering.stages import Bound, PacedFile, open_pipeline
from benchmarks.demand_layering.table import MIB, PAPER, PAPERS_MODEL
from benchmarks.demand_layering.turns import pass_s
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_weights import streamable
from split_infer_ros.weight_streaming.profiling import profile_partition
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_size import AllowedDelay, RingTrial, explore_trade_off
from split_infer_ros.weight_streaming.storage_checkup import read_rate

GROUP_S = 0.3  # how long the passes of a rival take together in a turn; at least one pass
PROFILE_PASSES = 3
POINTS = 5  # of the curve of delay against memory
DISK_SHARE = 0.6  # of the disk's own rate, so that the fixed rate is kept
COPIED = (child.SYNCHRONOUS, child.ASYNCHRONOUS)
PLACES = {child.SYNCHRONOUS: 4, child.ASYNCHRONOUS: 2, child.TWO_STAGE: 1}  # largest layers in memory, by the paper
EXTRA_MS = 1.0  # "below 1 ms" is the paper's goal of the optimised two-stage pipeline
OPTIMISED = "optimised"
PAPERS_ORDER = {  # of delays: 181.2, 195.3 and 198.9 ms
    (child.ASYNCHRONOUS, child.SYNCHRONOUS): "0.911",
    (child.ASYNCHRONOUS, child.TWO_STAGE): "0.928",
    (child.TWO_STAGE, child.SYNCHRONOUS): "0.982",
}


class StageContest:
    """Holds the pipelines of a model. Call ``close`` at the end.

    Args:
        name: the model's name.
        path: the file to which its packed weights are written.
        compute: binds a thread to the core that computes.
        read: binds a thread to the core that reads and copies.

    Attributes:
        name: the argument.
        contest: the turns.
        bytes_s: the fixed rate of reads: as fast as the layers compute, and at most a share of the disk's own rate.
    """

    def __init__(self, name: str, path: Path, compute: Bound, read: Bound) -> None:
        self.name = name
        self._path, self._compute, self._read = path, compute, read
        self._stack = ExitStack()
        self._model = load_model(ModelSpec(name, "random", "cpu"))
        pack_model(streamable(self._model), path, num_threads=None)  # whole layers, as on a GPU
        self._images = child.images_of(self._model)
        self._packed = self._open_packed()
        self.block_bytes = max(self._packed.block_sizes)
        self.weight_bytes = sum(self._packed.block_sizes)
        resident = load_once(self._open_packed())
        with compute():
            self._resident_s = pass_s(resident, self._images, 1, group_s=GROUP_S)
        self.bytes_s = min(self.weight_bytes / self._resident_s, DISK_SHARE * read_rate(path.parent)[0])
        self._profiles = {is_copied: self._profile(is_copied) for is_copied in (False, True)}
        self._trials = self._explore()
        self.plans = self._plan()
        self._rivals: dict[str, Callable[[Tensor], Sequence[Tensor]]] = {child.RESIDENT: resident}
        for rival, plan in self.plans.items():
            partition = self._open(plan)
            self._stack.callback(partition.close)
            self._rivals[rival] = partition
        self.contest = Contest(name, self._turn, self.claims)

    def close(self) -> None:
        """Closes the pipelines."""
        self._stack.close()

    def claims(self, contest: Contest) -> list[Claim]:
        """Returns the claims about predicted delays; of the paper's model, those about its pipelines, too."""
        figures, turn_s = contest.figures, contest.turn_s
        worst = maximum([prediction_error(figures, rival) for rival in self.plans])
        at_most = partial(Claim, direction=Direction.AT_MOST, turn_s=turn_s)
        middle = self._middle_error(figures)
        found = [
            at_most(f"{self.name}, two cores: predicted delay, off by, median of pipelines", middle, "%", 10.0),
            at_most(f"{self.name}, two cores: predicted delay, off by at most", worst, "%", 20.0),
        ]
        if self.name != PAPERS_MODEL:
            return found
        for rival, places in PLACES.items():
            held = exact(self.plans[rival].ring_bytes / self.block_bytes)
            paper = f"{places} largest layers: {PAPER[rival].memory_mib:.1f} MiB"
            claim = f"{self.name}, two cores: {rival} holds, in largest layers"
            found.append(at_most(claim, held, "", 1.02 * places, paper=paper))
        for (faster, slower), paper in PAPERS_ORDER.items():
            claim = f"{self.name}, two cores: delay of {faster}, part of that of {slower}"
            found.append(at_most(claim, ratio(figures[faster], figures[slower]), "x", 1.0, paper=paper))
        resident = figures[child.RESIDENT]
        added = estimate(added_ms, figures[OPTIMISED], resident)
        paper = f"below {EXTRA_MS:g} ms with 52.8 MiB"
        claim, floor = f"{self.name}, two cores: optimised, later than resident", -1e3 * JITTER * median(resident)
        return [*found, at_most(claim, added, "ms", EXTRA_MS, floor=floor, paper=paper)]

    def rows(self) -> list[Mapping[str, Any]]:
        """Returns a row for each pipeline and point of the curve, by its memory."""
        figures = self.contest.figures
        rows: list[Mapping[str, Any]] = []
        for rival in self._rivals:
            plan = self.plans.get(rival)
            row = {"model": self.name, "way": rival, **measured(delay_ms=in_ms(figures[rival]))}
            row["memory_mib"] = (self.weight_bytes if plan is None else _held(plan, self._packed.block_sizes)) / MIB
            row["weights_mib"], row["largest_mib"] = self.weight_bytes / MIB, self.block_bytes / MIB
            row["read_mb_s"] = self.bytes_s / 1e6
            if plan is not None:
                row["predicted_ms"] = 1e3 * median(figures[prediction_of(rival)])
                row["off_by_percent"] = prediction_error(figures, rival).value
            rows.append(row)
        return rows

    def curve(self) -> list[tuple[float, float]]:
        """Returns the measured delay against memory, in MiB and milliseconds: the points with two stages."""
        rows = [row for row in self.rows() if row["way"] not in (*COPIED, child.RESIDENT)]
        return sorted({(float(row["memory_mib"]), float(row["delay_ms"])) for row in rows})

    def _turn(self, number: int) -> dict[str, float]:
        figures: dict[str, float] = {}
        for rival in rotated(list(self._rivals), number):
            with self._compute():
                figures[rival] = pass_s(self._rivals[rival], self._images, 1, group_s=GROUP_S)
        slower = figures[child.RESIDENT] / self._resident_s  # a core is faster or slower than when it was profiled
        for rival, plan in self.plans.items():
            profile = self._profiles[plan.staging is not None]
            step_s = tuple(slower * seconds for seconds in profile.step_s)
            now = replace(profile, step_s=step_s, tail_s=slower * profile.tail_s)
            figures[prediction_of(rival)] = predict_delay(plan, now)
        return figures

    def _open_packed(self) -> Any:
        return child.open_whole(self._model, self._path, num_threads=None)

    def _open(self, plan: MemoryPlan) -> Any:
        return open_pipeline(self._open_packed(), plan, self._read, PacedFile.at(self.bytes_s))

    def _profile(self, is_copied: bool) -> StreamingProfile:
        packed = self._packed
        with self._compute():
            return profile_partition(
                self._open,
                packed.block_sizes,
                packed.step_blocks,
                inputs=[self._images],
                passes=PROFILE_PASSES,
                is_copied=is_copied,
            )

    def _explore(self) -> list[RingTrial]:
        """Predicts the trade-off of the two-stage pipeline, until a pass takes ``EXTRA_MS`` longer than resident."""
        packed, profile = self._packed, self._profiles[False]
        return explore_trade_off(
            packed.block_sizes,
            packed.step_blocks,
            lambda plan: predict_delay(plan, profile),
            max_bytes=self.weight_bytes,
            goal_s=AllowedDelay(EXTRA_MS / 1e3).goal_s(profile.compute_s),
        )

    def _plan(self) -> dict[str, MemoryPlan]:
        packed = self._packed
        plans = {
            rival: plan_memory(Residency(rival), packed.block_sizes, packed.step_blocks, is_copied=rival in COPIED)
            for rival in PLACES
        }
        plans[OPTIMISED] = self._trials[-1].memory_plan
        spread = {round(index * (len(self._trials) - 1) / POINTS) for index in range(1, POINTS)}
        for index in sorted(spread):
            plan = self._trials[index].memory_plan
            if plan not in plans.values():
                plans[f"{_held(plan, packed.block_sizes) / MIB:.1f} MiB"] = plan
        return plans

    def _middle_error(self, figures: Mapping[str, Sequence[float]]) -> Estimate:
        """Returns the median, over all pipelines, of ``prediction_error``."""

        def middle(*ratios: NDArray[np.float64]) -> NDArray[np.float64]:
            errors = [100 * np.abs(np.median(each, axis=-1) - 1) for each in ratios]
            return np.asarray(np.median(np.stack(errors), axis=0))

        ratios = [np.divide(figures[prediction_of(rival)], figures[rival]) for rival in self.plans]
        return estimate(middle, *ratios)


def _held(plan: MemoryPlan, block_sizes: Sequence[int]) -> int:
    return plan.ring_bytes + sum(block_sizes[: plan.resident_blocks])
