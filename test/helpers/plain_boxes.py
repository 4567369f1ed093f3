"""Reference implementations for decoders, in plain lists and loops."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from split_infer_ros.models.detections import Detections, Limits

Box = tuple[float, float, float, float]
Found = tuple[Box, float, int]  # corners, score, label


def corners_of(centre_x: float, centre_y: float, width: float, height: float) -> Box:
    return (centre_x - width / 2, centre_y - height / 2, centre_x + width / 2, centre_y + height / 2)


def overlap(a: Box, b: Box) -> float:
    """Returns the intersection over union of two boxes; 0 if both are empty."""
    wide = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    tall = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - wide * tall
    return wide * tall / union if union else 0.0


def best_first(found: Sequence[Found], limits: Limits) -> list[Found]:
    """Returns the objects above the score threshold, best first, without suppression."""
    above = [each for each in found if each[1] > limits.score_threshold]
    return sorted(above, key=lambda each: -each[1])[: limits.max_detections]


def suppressed(found: Sequence[Found], limits: Limits) -> list[Found]:
    """Returns the objects above the score threshold, best first, without those that a better one suppresses."""
    kept: list[Found] = []
    for each in sorted(found, key=lambda each: -each[1]):
        rivals = [other for other in kept if other[2] == each[2]]
        if each[1] > limits.score_threshold and all(
            overlap(each[0], other[0]) <= limits.nms_threshold for other in rivals
        ):
            kept.append(each)
    return kept[: limits.max_detections]


def check_equal(detections: Detections, expected: Sequence[Found], *, atol: float = 1e-3) -> None:
    """Asserts that detections are the expected objects, in the same order.

    Boxes may differ by ``atol`` pixels. They are of up to some hundred pixels, and a few operations in float32 compute
    them; the expected ones are in float64. Scores may differ by 1e-5: they are products or sigmoids in float32.
    """
    assert detections.labels.tolist() == [label for _, _, label in expected]
    assert detections.scores.tolist() == pytest.approx([score for _, score, _ in expected], abs=1e-5)
    flat = [side for box, _, _ in expected for side in box]
    assert detections.boxes.flatten().tolist() == pytest.approx(flat, abs=atol)
