"""Lets all configurations (rivals) of one model, engine and batch size take turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.common.energy import EnergyMeter
from benchmarks.common.turns import Contest
from benchmarks.rivals.paper_000 import papers_split_point
from benchmarks.rivals.pipelines import Rival, SplitPipeline, figure_key, figures_of_turns
from benchmarks.two_processors.subject import WHOLE, Subject
from benchmarks.two_processors.wholes import AsBuilt, TwoLanes
from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.cores import StageCores
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.split.planner import plan

AS_BUILT, PREPARED, OPTIMISED = "whole, as built", "whole, prepared", "whole, optimised"
BOTH_CORES, TWO_LANES = "whole, both cores", "whole, two lanes"
PLANNERS, PAPERS = "split, planner's split point", "split, paper's split point"
PLANNERS_AND_PAPERS = "split, planner's and paper's split point"


@dataclass(frozen=True)
class CellResult:
    """The results of all turns of one model, engine and batch size.

    Attributes:
        model, engine: their names.
        batch_size: images per batch.
        competitors: how many processes compete with the head for its processor.
        split: the name of the rival at the planner's split point.
        split_points: the split point of each rival that is one pipeline.
        predicted_images_per_s: the profile's prediction for the planner's split point.
        agreement: for each rival, the share of results whose best class is that of ``whole, optimised``.
        figures: one sample per turn, by the rival's and the figure's name; see ``figure_key``.
        turn_s: seconds per turn.
        timed_images: images of each rival that were timed.
        timelines: the times of all batches of the last turn, of each rival that is one pipeline.
    """

    model: str
    engine: str
    batch_size: int
    competitors: int
    split: str
    split_points: Mapping[str, str]
    predicted_images_per_s: float
    agreement: Mapping[str, float]
    figures: Mapping[str, Sequence[float]]
    turn_s: float
    timed_images: int
    timelines: Mapping[str, Sequence[Timeline]]

    @property
    def name(self) -> str:
        """The model, the engine, the batch size, and the head's part of its processor if others compete."""
        part = f", head at 1/{self.competitors + 1}" if self.competitors else ""
        return f"{self.model}, {self.engine}, batch {self.batch_size}{part}"

    @property
    def rivals(self) -> list[str]:
        """The names of all rivals."""
        return list(self.agreement)

    def samples(self, rival: str, figure: str) -> Sequence[float]:
        """Returns a rival's figure in each turn."""
        return self.figures[figure_key(rival, figure)]

    def has(self, rival: str, figure: str) -> bool:
        """Returns whether a rival has a figure."""
        return figure_key(rival, figure) in self.figures


class Cell:
    """The rivals of one model, engine and batch size.

    The profile is measured first. If processes compete for the head's processor, they do so from then on. In that case,
    only the optimised whole model and the planner's split point take part.

    Args:
        subject: the model.
        engine: what executes it.
        batch_size: images per batch.
        num_batches: how many batches of each rival are timed in a turn.
        competitors: how many processes compete with the head now.

    Attributes:
        contest: the contest of the rivals.
    """

    def __init__(
        self, subject: Subject, engine: Engine, batch_size: int, *, num_batches: int, competitors: int = 0
    ) -> None:
        self._subject, self._engine, self._batch_size = subject, engine, batch_size
        self._num_batches, self._competitors = num_batches, competitors
        self._energy = EnergyMeter()
        self._model = subject.model(engine)
        profile = subject.measure(engine, batch_size)
        self._choice = plan(profile, batch_sizes=[batch_size])
        planners, papers = self._choice.split_point, papers_split_point(self._model)
        self._split = PLANNERS_AND_PAPERS if planners == papers else PLANNERS
        splits = {self._split: planners}
        if planners != papers and not competitors:
            splits[PAPERS] = papers
        self._rivals: dict[str, Rival] = {} if competitors else self._others()
        self._rivals[OPTIMISED] = self._pipeline(WHOLE)
        self._rivals |= {name: self._pipeline(split_point) for name, split_point in splits.items()}
        self.contest = Contest(f"{subject.name}, {engine.value}, batch {batch_size}", self._turn)

    def result(self) -> CellResult:
        """Returns the results of the turns so far."""
        pipelines = {name: rival for name, rival in self._rivals.items() if isinstance(rival, SplitPipeline)}
        contest = self.contest
        return CellResult(
            model=self._subject.name,
            engine=self._engine.value,
            batch_size=self._batch_size,
            competitors=self._competitors,
            split=self._split,
            split_points={name: pipeline.split_point for name, pipeline in pipelines.items()},
            predicted_images_per_s=self._choice.throughput,
            agreement={name: self._agreement(rival) for name, rival in self._rivals.items()},
            figures=contest.figures,
            turn_s=contest.turn_s,
            timed_images=contest.turns * self._num_batches * self._batch_size,
            timelines={name: pipeline.timelines for name, pipeline in pipelines.items()},
        )

    def close(self) -> None:
        """Frees the rivals' memory."""
        for rival in self._rivals.values():
            rival.close()

    def _others(self) -> dict[str, Rival]:
        """Returns the rivals that take part only if no processes compete."""
        processors, size = self._subject.processors, self._batch_size
        rivals: dict[str, Rival] = {}
        if self._engine is Engine.TORCH:
            rivals[AS_BUILT] = AsBuilt(self._subject, size)
        rivals[PREPARED] = self._pipeline(WHOLE, one_by_one=True)
        rivals[BOTH_CORES] = self._alone(processors.both)
        rivals[TWO_LANES] = TwoLanes([self._alone(cores) for cores in processors.lanes])
        return rivals

    def _alone(self, cores: StageCores) -> SplitPipeline:
        """Returns the whole model on other cores, with partitions of its own; see ``Subject.model``."""
        return self._subject.pipeline(self._subject.model(self._engine), WHOLE, self._batch_size, cores=cores)

    def _pipeline(self, split_point: str, *, one_by_one: bool = False) -> SplitPipeline:
        """Returns a pipeline on both processors. If it is split, so many batches follow that all slots stay in use."""
        return self._subject.pipeline(
            self._model,
            split_point,
            self._batch_size,
            cores=self._subject.processors.stages,
            ahead=1 if split_point == WHOLE else StageSettings().pool_slots,
            one_by_one=one_by_one,
        )

    def _turn(self, number: int) -> dict[str, float]:
        return figures_of_turns(self._rivals, number, self._num_batches, energy=self._energy)

    def _agreement(self, rival: Rival) -> float:
        """Returns the share of a rival's results that are those of the optimised whole model."""
        expected = self._rivals[OPTIMISED].feed.labels[: len(self._subject.images)]
        return rival.feed.agreement(expected)
