"""Lets all configurations (rivals) of one model at one batch size take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.common.claim import Claim
from benchmarks.common.energy import FIGURE, EnergyMeter, energy_row
from benchmarks.common.turns import Contest
from benchmarks.common.usage import Usage
from benchmarks.rivals.image_feed import ImageFeed
from benchmarks.rivals.pipelines import Rival, SplitPipeline, WholeModel, figure_key, figures_of_turns
from benchmarks.unified_splitting.gpu_only import Optimised, Prepared
from benchmarks.unified_splitting.subject import Subject
from split_infer_ros.split.planner import plan

AS_BUILT, PREPARED, OPTIMISED = "baseline, as built", "baseline, prepared", "optimised"
WHOLE_MODELS = (AS_BUILT, PREPARED, OPTIMISED)
PLANNERS = "split, planner's split point"
PAPERS = "split, paper's split point"
PLANNERS_AND_PAPERS = "split, planner's and paper's split point"
TWO_PROCESSES = "split, planner's split point, two processes"


@dataclass(frozen=True)
class MatchResult:
    """The results of all turns of one model at one batch size.

    Attributes:
        model: the model's name.
        batch_size: images per batch.
        detects: whether the model is a detector.
        figures: one sample per turn, by the rival's and the figure's name; see ``figure_key``.
        turn_s: seconds per turn.
        planners: the name of the rival at the planner's split point.
        fixed: the names of the rivals at other split points.
        predicted_images_per_s: the profile's prediction for the planner's split point.
        agreement: the share of results at the planner's split point whose best class is the baseline's.
        rows: a row for each rival. Figures that compare rivals are added later.
    """

    model: str
    batch_size: int
    detects: bool
    figures: Mapping[str, Sequence[float]]
    turn_s: float
    planners: str
    fixed: Sequence[str]
    predicted_images_per_s: float
    agreement: float
    rows: Sequence[Mapping[str, Any]]

    def samples(self, rival: str, figure: str) -> Sequence[float]:
        """Returns a rival's figure in each turn."""
        return self.figures[figure_key(rival, figure)]


class Match:
    """The contest of all configurations of one model at one batch size.

    Args:
        subject: the model.
        batch_size: images per batch.
        with_fixed_split_points: whether the best fixed split points compete.
        conclude: returns the claims that depend only on this match.

    Attributes:
        contest: the contest of the configurations.
        batches_a_turn: how many batches of each configuration are timed in a turn.
    """

    def __init__(
        self,
        subject: Subject,
        batch_size: int,
        *,
        with_fixed_split_points: bool,
        conclude: Callable[[MatchResult], Sequence[Claim]] = lambda result: (),
    ) -> None:
        self._subject = subject
        self._batch_size = batch_size
        self._choice = plan(subject.profile, batch_sizes=[batch_size])
        self.batches_a_turn = subject.extent.batches_a_turn(self._choice)
        planners, papers = self._choice.split_point, subject.papers_split_point
        self._planners = PLANNERS_AND_PAPERS if planners == papers else PLANNERS
        split_points = {self._planners: planners}
        if planners != papers:
            split_points[PAPERS] = papers
        if with_fixed_split_points:
            for fixed in subject.fixed_split_points(planners, batch_size):
                split_points[f"split, split point {fixed}"] = fixed
        self._fixed = [name for name in split_points if name != self._planners]
        self._usage, self._energy = Usage(), EnergyMeter()
        pipelines = {name: subject.split_at(split_point, batch_size) for name, split_point in split_points.items()}
        pipelines[TWO_PROCESSES] = subject.split_at(planners, batch_size, two_processes=True)
        self._copies = {
            name: subject.count_copies(pipeline.split_point, two_processes=name == TWO_PROCESSES)
            for name, pipeline in pipelines.items()
        }
        self._rivals: dict[str, Rival] = {**self._whole_models(), **pipelines}
        name = f"{subject.entry.name}, batch {batch_size}"
        self.contest = Contest(name, self._turn, lambda contest: conclude(self.result()))

    def result(self) -> MatchResult:
        """Returns the results of the turns so far."""
        return MatchResult(
            model=self._subject.entry.name,
            batch_size=self._batch_size,
            detects=self._subject.detects,
            figures=self.contest.figures,
            turn_s=self.contest.turn_s,
            planners=self._planners,
            fixed=self._fixed,
            predicted_images_per_s=self._choice.throughput,
            agreement=self._rivals[self._planners].feed.agreement(self._baseline_labels),
            rows=[self._row(name, rival) for name, rival in self._rivals.items()],
        )

    def close(self) -> None:
        """Frees the rivals' memory."""
        for rival in self._rivals.values():
            rival.close()

    def _whole_models(self) -> dict[str, Rival]:
        subject, size = self._subject, self._batch_size
        prepared = Prepared(subject.model, size, subject.limits)
        optimised = Optimised(subject.model, size, subject.limits)
        ahead = 2 if subject.model.device.type == "cuda" else 1  # on a GPU, one batch is computed and one is gathered
        return {
            AS_BUILT: WholeModel(subject.baseline.run, ImageFeed(subject.images, size)),
            PREPARED: WholeModel(prepared.run, ImageFeed(subject.images, size)),
            OPTIMISED: WholeModel(optimised.run, ImageFeed(subject.images, size), ahead),
        }

    def _turn(self, number: int) -> dict[str, float]:
        return figures_of_turns(self._rivals, number, self.batches_a_turn, usage_of=self._usage.of, energy=self._energy)

    @property
    def _baseline_labels(self) -> list[int]:
        """The label that the baseline gave to each image."""
        return self._rivals[AS_BUILT].feed.labels[: len(self._subject.images)]

    def _row(self, name: str, rival: Rival) -> dict[str, Any]:
        row: dict[str, Any] = {
            "model": self._subject.entry.name,
            "batch_size": self._batch_size,
            "configuration": name,
            "timed_samples": self.contest.turns * self.batches_a_turn * self._batch_size,
            "agreement": rival.feed.agreement(self._baseline_labels),
            **self._usage.row(name),
            **energy_row(self.contest.figures[figure_key(name, FIGURE)]),
        }
        if isinstance(rival, SplitPipeline):
            row |= {
                "split_point": rival.split_point,
                "memory_policy": rival.memory_policy,
                "memory_reason": rival.memory_reason,
                "copy_calls": self._copies[name].split,
                "copy_calls_added": self._copies[name].added,
            }
        return row
