"""How what was computed twice compares, on any processor.

The same bits are due of a copy, and where the very same operations run with the same layouts, batch size and threads.
All else is the same but for rounding. A kernel for another processor, layout, batch or number of threads adds up in
another order.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from split_infer_ros.models.detections import Detections


def rounding(found: Tensor, expected: Tensor) -> float:
    """The largest difference, as a share of the largest value: sums of many terms round by their terms' size."""
    return float((found - expected).abs().max() / expected.abs().max())


def assert_same_detections(found: Detections, expected: Detections, scores: float = 1e-4, boxes: float = 0.05) -> None:
    """The same objects as sets: objects whose scores are nearly equal come in whatever order rounding gives them.

    Args:
        found, expected: of one image.
        scores: how far two scores of one object may be apart.
        boxes: how far two edges may be, in pixels.
    """
    assert len(found) == len(expected)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=scores)  # both come best first
    same = found.labels[:, None] == expected.labels
    same &= np.abs(found.scores[:, None] - expected.scores) <= scores
    same &= np.abs(found.boxes[:, None] - expected.boxes).max(axis=2) <= boxes
    for one, other, pairs in ((found, expected, same), (expected, found, same.T)):
        missing = np.flatnonzero(~pairs.any(axis=1)).tolist()
        assert not missing, f"{missing} of {one} are not in {other}"
