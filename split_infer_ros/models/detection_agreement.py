"""Measures how far apart the detections of two executions of one detector are, in pixels and in scores.

A side is one of the two executions. The sides round differently. Two candidates of nearly equal scores may then
suppress each other in a different order. One side alone may keep a candidate if the candidate's overlap is at a limit.
So the kept detections of both sides are not compared directly. A detection of one side needs a counterpart among the
other side's candidates, suppressed ones included. If every detection has one, the sides differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats, Integers
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.vision_ops.box_iou import box_iou

MAX_BOX_DIFFERENCE = 0.5  # of each side of a box, in pixels of the model's input
MAX_SCORE_DIFFERENCE = 2e-3
MIN_DETECTIONS = 10  # with fewer, detections say too little about the network
FLOORS = (0.5, 0.2, 0.1, 0.04)  # shares of the threshold; the first one with enough detections above it counts
# Half of the threshold alone leaves too few detections. YOLOX-Nano has 12 above it in eight drawn scenes, and 5 in the
# first four, after which a slow model may stop. Tensors would then decide; they refused OpenVINO for 0.07 pixels.
MAX_CANDIDATES = 1000  # of one image
SAME_OBJECT = 0.5  # IoU from which two boxes of a class are the same object, even if one is at a wrong place

Outputs = TypeVar("Outputs")


@dataclass(frozen=True, slots=True)
class DetectionDifference:
    """The result of a comparison of detections.

    Attributes:
        compared: the number of expected detections that were looked for among the found candidates, over all images.
        floor: the score above which detections were compared.
        boxes: the largest distance between an edge of a box and the same edge of its counterpart, in input pixels.
        scores: the largest difference between the scores of a detection and of its counterpart.
        missing: the number of detections of both executions without a counterpart of the same class at the same place.
    """

    ALLOWED: ClassVar[str] = f"{MAX_BOX_DIFFERENCE:g} pixels and {MAX_SCORE_DIFFERENCE:g} of a score"

    compared: int
    floor: float
    boxes: float
    scores: float
    missing: int

    @property
    def is_enough(self) -> bool:
        """Whether enough detections were compared for a judgement: ``MIN_DETECTIONS``."""
        return self.compared >= MIN_DETECTIONS

    @property
    def agrees(self) -> bool:
        """Whether both executions find the same detections, apart from rounding.

        No detection is missing, and boxes and scores differ by ``MAX_BOX_DIFFERENCE`` and ``MAX_SCORE_DIFFERENCE`` at
        most.
        """
        return not self.missing and self.boxes <= MAX_BOX_DIFFERENCE and self.scores <= MAX_SCORE_DIFFERENCE

    def __str__(self) -> str:
        text = f"boxes by up to {self.boxes:.2g} pixels, scores by {self.scores:.1g}"
        return f"{text}, and {self.missing} of {self.compared} detections are missing" if self.missing else text


@dataclass(frozen=True, slots=True)
class _Side:
    """The detections of one side in an image. All numbers are finite, and boxes and scores are float64.

    Attributes:
        kept: the detections that suppression leaves.
        candidates: all detections, also those that suppression removes.
    """

    kept: Detections
    candidates: Detections


def compare_detections(
    decode: Callable[[Outputs, Limits], Sequence[Detections]],
    found: Outputs,
    expected: Outputs,
    limits: Limits | None = None,
) -> DetectionDifference:
    """Compares the detections of two executions of one detector on the same images.

    Detections with scores above half of the score threshold are compared. If there are fewer than ``MIN_DETECTIONS``,
    detections with lower scores are compared as well; see ``FLOORS``.

    Args:
        decode: takes the outputs of a batch and limits; returns the detections of each image.
        found, expected: the outputs of the two executions.
        limits: the limits that decide which detections are kept. None means the defaults.
    """
    limits = limits or Limits()
    found_sides, expected_sides = (_sides(decode, outputs, limits) for outputs in (found, expected))
    for share in FLOORS:
        floor = share * limits.score_threshold
        if sum(len(_above(side.kept, floor)) for side in expected_sides) >= MIN_DETECTIONS:
            break
    forth = [_search(*pair, floor) for pair in zip(expected_sides, found_sides, strict=True)]
    back = [_search(*pair, floor) for pair in zip(found_sides, expected_sides, strict=True)]
    return DetectionDifference(
        compared=sum(search.wanted for search in forth),
        floor=floor,
        boxes=max((search.boxes for search in forth + back), default=0.0),
        scores=max((search.scores for search in forth + back), default=0.0),
        missing=sum(search.missing for search in forth + back),
    )


def _sides(decode: Callable[[Outputs, Limits], Sequence[Detections]], outputs: Outputs, limits: Limits) -> list[_Side]:
    """Returns the detections of each image of a batch, with suppression and without it."""
    lowest = replace(limits, score_threshold=FLOORS[-1] * limits.score_threshold)
    every = Limits(score_threshold=0.0, nms_threshold=1.0, max_detections=MAX_CANDIDATES)
    return [
        _Side(_finite(kept), _finite(candidates))
        for kept, candidates in zip(decode(outputs, lowest), decode(outputs, every), strict=True)
    ]


def _finite(found: Detections) -> Detections:
    finite = found.where(np.isfinite(found.boxes).all(1) & np.isfinite(found.scores))
    return replace(finite, boxes=finite.boxes.astype(np.float64), scores=finite.scores.astype(np.float64))


def _above(found: Detections, floor: float) -> Detections:
    return found.where(found.scores > floor)


class _Search(NamedTuple):
    """The search for one side's detections of an image among the other side's candidates.

    Attributes:
        wanted: the number of detections that have a counterpart or should have one.
        boxes, scores: the largest differences between these detections and their counterparts.
        missing: the number of detections that should have a counterpart and have none.
    """

    wanted: int = 0
    boxes: float = 0.0
    scores: float = 0.0
    missing: int = 0


def _search(side: _Side, other: _Side, floor: float) -> _Search:
    """Looks for the detections that one side keeps among the other side's candidates.

    The network or this module may limit the number of candidates. The other side may then lack a detection with nearly
    the lowest score. Such a detection does not count as missing.
    """
    kept, candidates = _above(side.kept, floor), other.candidates
    if not len(kept) or not len(candidates):
        return _Search(wanted=len(kept), missing=len(kept))
    by_box = np.abs(kept.boxes[:, None] - candidates.boxes).max(2)
    by_score = np.abs(kept.scores[:, None] - candidates.scores)
    distances = np.maximum(by_box / MAX_BOX_DIFFERENCE, by_score / MAX_SCORE_DIFFERENCE)
    distances[kept.labels[:, None] != candidates.labels] = np.inf
    partners = match(distances <= 1.0, distances)
    may_be_last = kept.scores <= candidates.scores.min() + MAX_SCORE_DIFFERENCE
    may_lack = may_be_last & (len(candidates) >= len(side.candidates))
    for row in np.flatnonzero(partners < 0):
        if not may_lack[row] or len(candidates) < MAX_CANDIDATES:
            partners[row] = _displaced(kept.boxes[row], candidates.boxes, distances[row])
    rows = np.flatnonzero(partners >= 0)
    pairs = rows, partners[rows]
    missing = int(((partners < 0) & ~may_lack).sum())
    return _Search(
        wanted=len(rows) + missing,
        boxes=float(by_box[pairs].max(initial=0.0)),
        scores=float(by_score[pairs].max(initial=0.0)),
        missing=missing,
    )


def _displaced(box: Floats, boxes: Floats, distances: Floats) -> int:
    """Returns the index of the nearest candidate for the same object that is too far off to count as equal; else -1."""
    distances = np.where(box_iou(box[None], boxes)[0] >= SAME_OBJECT, distances, np.inf)
    nearest = int(distances.argmin())
    return nearest if 1.0 < distances[nearest] < np.inf else -1


def match(fits: Flags, distances: Floats) -> Integers:
    """Gives a column to as many rows as possible, and no column to two rows. Tries the nearest columns of a row first.

    Args:
        fits: bool (n, m), true where a row may have a column.
        distances: floating (n, m), the distance from each row to each column.

    Returns:
        int64 (n,): the column of each row; -1 for a row that gets none.
    """
    choices = [sorted(np.flatnonzero(row), key=distances[index].item) for index, row in enumerate(fits)]
    owners: dict[int, int] = {}  # by column

    def give(row: int, seen: set[int]) -> bool:
        """Gives a row a column. Another row gives up the column that it has if it finds another one for itself."""
        for column in map(int, choices[row]):
            if column not in seen:
                seen.add(column)
                if column not in owners or give(owners[column], seen):
                    owners[column] = row
                    return True
        return False

    for row in range(len(choices)):
        give(row, set())
    columns = np.full(len(choices), -1)
    columns[list(owners.values())] = list(owners)
    return columns
