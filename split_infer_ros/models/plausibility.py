"""Drops impossible detections, such as boxes with a negative size, and counts them by reason.

Detections that rounding alone made impossible are corrected and kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from split_infer_ros.buffers.host_arrays import Flags, Floats
from split_infer_ros.models.detections import Detections, highest, lowest

MAX_SCORE_ROUNDING = 1e-4  # how far a score may be above 1: a sigmoid in 8 bits gives 255 * 0.003921569
MAX_SIZE_ROUNDING = 1e-3  # pixels, or metres, by which a box may end before it begins


class ImpossibleDetection(Enum):
    """Why a detection is impossible. The value is the name under which such detections are counted."""

    BOX_NOT_FINITE = "box_not_finite"  # a corner is NaN or infinite
    BOX_OF_NEGATIVE_SIZE = "box_of_negative_size"  # it ends before it begins; a size of 0 is possible
    SCORE_OUT_OF_RANGE = "score_out_of_range"  # NaN, or not in 0..1
    UNKNOWN_LABEL = "unknown_label"  # the model has no name for it


def drop_impossible(found: Sequence[Detections], num_labels: int) -> tuple[Sequence[Detections], Counter[str]]:
    """Drops the impossible detections of a batch. Those that rounding alone made impossible are corrected and kept.

    Args:
        found: the detections of each image.
        num_labels: the number of the model's labels.

    Returns:
        The remaining detections of each image, in the same order. Also the number of dropped detections, by the value
        of ``ImpossibleDetection``. If several reasons apply to a detection, it is counted under the first of them.
    """
    counts = [len(detections) for detections in found]
    if not sum(counts):
        return found, Counter()
    boxes = np.concatenate([detections.boxes for detections in found])
    scores = np.concatenate([detections.scores for detections in found])
    labels = np.concatenate([detections.labels for detections in found])
    found, boxes, scores = _without_rounding(found, counts, boxes, scores)
    is_possible = {
        ImpossibleDetection.BOX_NOT_FINITE: np.isfinite(boxes).all(1),
        ImpossibleDetection.BOX_OF_NEGATIVE_SIZE: (highest(boxes) >= lowest(boxes)).all(1),
        ImpossibleDetection.SCORE_OUT_OF_RANGE: (scores >= 0) & (scores <= 1),
        ImpossibleDetection.UNKNOWN_LABEL: (labels >= 0) & (labels < num_labels),
    }
    if all(flags.all() for flags in is_possible.values()):
        return found, Counter()
    reasons, checks = list(is_possible), np.stack(tuple(is_possible.values()))
    kept: Flags = np.all(checks, axis=0)
    first_failures = checks[:, ~kept].argmin(0).tolist()
    dropped = Counter(reasons[first].value for first in first_failures)
    return [each.where(keep) for each, keep in zip(found, _divided(kept, counts), strict=True)], dropped


def _without_rounding(
    found: Sequence[Detections], counts: Sequence[int], boxes: Floats, scores: Floats
) -> tuple[Sequence[Detections], Floats, Floats]:
    """Sets scores just above 1 to 1, and sizes just below 0 to 0. If there are none, nothing is copied."""
    is_high = (scores > 1) & (scores <= 1 + MAX_SCORE_ROUNDING)
    low, high = lowest(boxes), highest(boxes)
    is_thin = (high < low) & (high >= low - MAX_SIZE_ROUNDING)
    if not is_high.any() and not is_thin.any():
        return found, boxes, scores
    scores = np.where(is_high, np.float32(1), scores)
    boxes = np.concatenate((low, np.where(is_thin, low, high)), 1)
    parts = zip(_divided(boxes, counts), _divided(scores, counts), found, strict=True)
    mended = [Detections(image_boxes, image_scores, each.labels) for image_boxes, image_scores, each in parts]
    return mended, boxes, scores


def _divided(rows: npt.NDArray[Any], counts: Sequence[int]) -> list[npt.NDArray[Any]]:
    """Divides rows among the images."""
    return np.split(rows, np.cumsum(counts[:-1]))
