"""Compares results that were computed in two ways, on any processor.

Two results have equal bits if one is a copy, or if equal operations ran with equal layouts, batch size and number of
threads. All other results agree except for rounding: a kernel for another processor, layout, batch size or number of
threads adds up in another order.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from split_infer_ros.models.detections import Detections


def rounding(found: Tensor, expected: Tensor) -> float:
    """Returns the largest difference, as a share of the largest expected value.

    The error of a sum of many terms depends on the size of its terms, so the share is of the largest value.
    """
    return float((found - expected).abs().max() / expected.abs().max())


def assert_same_detections(found: Detections, expected: Detections, scores: float = 1e-4, boxes: float = 0.05) -> None:
    """Asserts that two results have the same objects, in any order.

    The order is not compared, because rounding decides it for objects with nearly equal scores.

    Args:
        found, expected: the detections of one image.
        scores: how far the two scores of an object may be apart.
        boxes: how far the two positions of an edge of a box may be apart, in pixels.
    """
    assert len(found) == len(expected)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=scores)  # both come best first
    same = found.labels[:, None] == expected.labels
    same &= np.abs(found.scores[:, None] - expected.scores) <= scores
    same &= np.abs(found.boxes[:, None] - expected.boxes).max(axis=2) <= boxes
    for one, other, pairs in ((found, expected, same), (expected, found, same.T)):
        missing = np.flatnonzero(~pairs.any(axis=1)).tolist()
        assert not missing, f"{missing} of {one} are not in {other}"
