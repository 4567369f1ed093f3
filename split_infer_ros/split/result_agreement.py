"""Compares the results of two executions of a model: detections or scores if there are enough, or else tensors."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.engines.result_difference import difference
from split_infer_ros.models.detection_agreement import DetectionDifference, compare_detections
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.score_agreement import ScoreDifference, compare_scores
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.split_points import OUTPUT

_log = logging.getLogger(__name__)

Batches = Sequence[tuple[Values, ...]]
"""The outputs of several batches, each on the CPU."""

Measure = Callable[[Sequence[Values], Sequence[Values]], float]


@dataclass(frozen=True, slots=True)
class ResultDifference:
    """How far the results of two executions are apart.

    Attributes:
        largest: the largest difference between two values of an output, as a share of the output's largest value. It is
            not finite if one side has a number where the other side has none.
        decoded: the difference between the detections, or between a classifier's scores; None if there are too few of
            them for a judgement.
    """

    largest: float
    decoded: DetectionDifference | ScoreDifference | None

    def agrees(self, allowed: Callable[[], float]) -> bool:
        """Returns whether rounding explains the difference.

        Detections or scores decide. If there are too few of them, ``largest`` decides. A difference that is not finite
        is never explained.

        Args:
            allowed: gives the largest value that ``largest`` may have. It is called only if ``largest`` decides.
        """
        if not math.isfinite(self.largest):
            return False
        return self.decoded.agrees if self.decoded else self.largest <= allowed()

    def allowed_text(self, allowed: Callable[[], float]) -> str:
        """Returns words that say which difference ``agrees`` allows, such as ``0.0001 is allowed``."""
        if not math.isfinite(self.largest):
            return "any finite difference is allowed"
        return f"{self.decoded.ALLOWED if self.decoded else f'{allowed():g}'} is allowed"

    def __str__(self) -> str:
        return str(self.decoded) if self.decoded else f"by {self.largest:.2g} of the largest"


def compare_results(
    entry: ModelEntry, found: Batches, expected: Batches, *, classifies: bool, measure: Measure = difference
) -> ResultDifference:
    """Compares the results of two executions for the same images.

    Args:
        entry: decodes the outputs.
        found, expected: the outputs of each batch, from the two executions.
        classifies: whether the model is a classifier. Then scores are compared in place of detections.
        measure: takes the found and the expected outputs of a batch, and gives their largest relative difference. The
            difference is not finite if one side has a number where the other side has none.
    """
    largest = max((measure(*pair) for pair in zip(found, expected, strict=True)), key=_badness, default=0.0)
    if not math.isfinite(largest):
        return ResultDifference(largest, None)

    def decode(batches: Batches, limits: Limits) -> list[Detections]:
        return [image for outputs in batches for image in entry.detections_of(outputs, limits)]

    compare = compare_scores if classifies else compare_detections
    try:
        decoded: DetectionDifference | ScoreDifference = compare(decode, found, expected)
    except Exception as error:  # a user's decoder may raise anything
        _log.warning(
            "%s: the decoder fails for drawn scenes (%s: %s), so values are compared, and not what they mean.",
            entry.name,
            type(error).__name__,
            error,
        )
        return ResultDifference(largest, None)
    return ResultDifference(largest, decoded if decoded.is_enough else None)


def is_classifier(model: SplitModel) -> bool:
    """Returns whether a model gives one score for each of its labels, and nothing else."""
    last = model.split_points[-1]
    shapes = [spec.shape for spec in last.tensors]
    return last.name == OUTPUT and len(shapes) == 1 and math.prod(shapes[0]) == max((0, *shapes[0]))


def _badness(value: float) -> float:
    """Ranks NaN above all numbers."""
    return math.inf if math.isnan(value) else value
