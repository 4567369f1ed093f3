"""All configurations of one model at one batch size, which take turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from _gpu_only import Optimised, Prepared
from _split_rivals import Feed, Rival, Split, WholeModel
from _split_subject import Subject

from split_infer_ros.split.planner import plan
from split_infer_ros.telemetry.claim import Claim
from split_infer_ros.telemetry.turns import Contest, rotated
from split_infer_ros.telemetry.usage import Usage

AS_BUILT, PREPARED, OPTIMISED = WHOLE = "baseline, as built", "baseline, prepared", "optimised"
PLANNERS, PAPERS, BOTH = (
    "split, planner's split point",
    "split, paper's split point",
    "split, planner's and paper's split point",
)


@dataclass(frozen=True)
class Found:
    """What the turns of one model at one batch size gave.

    Attributes:
        model, batch_size: of the contest.
        detects: whether the model is a detector.
        figures: one list of samples, a turn each, by rival and figure: see ``samples``.
        turn_s: seconds a turn.
        planners: the rival that is split at the planner's split point.
        fixed: the rivals that are split at another one.
        predicted: images a second of the planner's split point, by its profile.
        agreement: of the planner's split with the baseline's results.
        rows: one for each rival, but for what compares rivals.
    """

    model: str
    batch_size: int
    detects: bool
    figures: Mapping[str, Sequence[float]]
    turn_s: float
    planners: str
    fixed: Sequence[str]
    predicted: float
    agreement: float
    rows: Sequence[Mapping[str, Any]]

    def samples(self, rival: str, figure: str) -> Sequence[float]:
        """A rival's figure, turn by turn."""
        return self.figures[key(rival, figure)]


def key(rival: str, figure: str) -> str:
    """Under which a contest keeps a rival's figure."""
    return f"{rival}: {figure}"


class Match:
    """All configurations of one model at one batch size.

    Args:
        subject: the model.
        batch_size: of every batch.
        with_fixed_split_points: whether the best fixed split points take part.
        conclude: the claims that rest on this match alone.

    Attributes:
        contest: its turns.
        batches: of each configuration that are timed in a turn.
    """

    def __init__(
        self,
        subject: Subject,
        batch_size: int,
        with_fixed_split_points: bool,
        conclude: Callable[[Found], Sequence[Claim]] = lambda found: (),
    ) -> None:
        self._subject = subject
        self._batch_size = batch_size
        self._choice = plan(subject.profile, batch_sizes=[batch_size])
        self.batches = subject.extent.batches_a_turn(self._choice)
        planners, papers = self._choice.split_point, subject.papers_split_point
        split_points = {BOTH: planners} if planners == papers else {PLANNERS: planners, PAPERS: papers}
        self._planners, *_ = split_points
        if with_fixed_split_points:
            split_points |= {
                f"split, cut {split_point}": split_point
                for split_point in subject.fixed_split_points(planners, batch_size)
            }
        self._fixed = [name for name in split_points if name != self._planners]
        self._usage = Usage()
        self._splits = {name: subject.split(split_point, batch_size) for name, split_point in split_points.items()}
        self._rivals: dict[str, Rival] = {**self._whole_models(), **self._splits}
        name = f"{subject.entry.name}, batch {batch_size}"
        self.contest = Contest(name, self._turn, lambda contest: conclude(self.found()))

    def found(self) -> Found:
        """What the turns so far gave."""
        planners = self._rivals[self._planners]
        return Found(
            self._subject.entry.name,
            self._batch_size,
            self._subject.detects,
            self.contest.figures,
            self.contest.turn_s,
            self._planners,
            self._fixed,
            self._choice.throughput,
            planners.feed.agreement(self._labels),
            [self._row(name, rival) for name, rival in self._rivals.items()],
        )

    def close(self) -> None:
        """Free the rivals' memory."""
        for rival in self._rivals.values():
            rival.close()

    def _whole_models(self) -> dict[str, Rival]:
        subject, size = self._subject, self._batch_size
        prepared = Prepared(subject.model, size, subject.limits)
        optimised = Optimised(subject.model, size, subject.limits)
        ahead = 2 if subject.model.device.type == "cuda" else 1  # computed, or only gathered, beside the one finished
        return {
            AS_BUILT: WholeModel(subject.baseline.run, Feed(subject.pictures, size)),
            PREPARED: WholeModel(prepared.run, Feed(subject.pictures, size)),
            OPTIMISED: WholeModel(optimised.run, Feed(subject.pictures, size), ahead),
        }

    def _turn(self, number: int) -> dict[str, float]:
        figures = {}
        for name in rotated(list(self._rivals), number):
            for figure, value in self._rivals[name].take(self.batches, self._usage.of(name)).items():
                figures[key(name, figure)] = value
        return figures

    @property
    def _labels(self) -> list[int]:
        return self._rivals[AS_BUILT].feed.labels[: len(self._subject.pictures)]

    def _row(self, name: str, rival: Rival) -> dict[str, Any]:
        row: dict[str, Any] = {
            "model": self._subject.entry.name,
            "batch_size": self._batch_size,
            "configuration": name,
            "timed_samples": self.contest.turns * self.batches * self._batch_size,
            "agreement": rival.feed.agreement(self._labels),
            **self._usage.row(name),
        }
        if isinstance(rival, Split):
            row |= {
                "split_point": rival.split_point,
                "memory_policy": rival.memory,
                "memory_reason": rival.memory_reason,
            }
        return row
