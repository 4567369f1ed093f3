"""What no detection can be: whatever a model says, these are left out, and counted by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from split_infer_ros.models.detections import Detections

NOT_FINITE, NEGATIVE_SIZE = "box_not_finite", "box_of_negative_size"
BAD_SCORE, BAD_LABEL = "score_out_of_range", "unknown_label"


def leave_out_impossible(found: Sequence[Detections], labels: int) -> tuple[Sequence[Detections], Counter[str]]:
    """The detections of a batch that can be, in their order, and how many cannot, by the first name that fits.

    A corner that is NaN or infinite is ``box_not_finite``; a right or bottom before left or top is
    ``box_of_negative_size`` (a size of zero is allowed); a score that is NaN or not in 0..1 is ``score_out_of_range``;
    a label that none of the model's names is for is ``unknown_label``.

    Args:
        found: of each image.
        labels: how many the model has.
    """
    counts = [len(one) for one in found]
    if not sum(counts):
        return found, Counter()
    boxes = torch.cat([one.boxes for one in found])
    scores = torch.cat([one.scores for one in found])
    indices = torch.cat([one.labels for one in found])
    right = {
        NOT_FINITE: boxes.isfinite().all(1),
        NEGATIVE_SIZE: (boxes[:, 2:] >= boxes[:, :2]).all(1),
        BAD_SCORE: (scores >= 0) & (scores <= 1),
        BAD_LABEL: (indices >= 0) & (indices < labels),
    }
    checked = torch.stack(tuple(right.values()))
    kept = checked.all(0)
    if bool(kept.all()):
        return found, Counter()
    names = list(right)
    wrong = Counter(names[first] for first in (~checked[:, ~kept]).int().argmax(0).tolist())
    left = [
        Detections(one.boxes[mine], one.scores[mine], one.labels[mine])
        for one, mine in zip(found, kept.split(counts), strict=True)  # type: ignore[no-untyped-call]
    ]
    return left, wrong
