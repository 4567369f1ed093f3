from __future__ import annotations

import pytest
import torch

from split_infer_ros.models.classifier import classify
from split_infer_ros.models.detections import Detections, Limits

LOGITS = torch.log(torch.tensor([[0.1, 0.6, 0.3], [0.5, 0.25, 0.25]]))


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        (Limits(0.0, max_detections=3), [[1, 2, 0], [0, 1, 2]]),
        (Limits(0.0, max_detections=99), [[1, 2, 0], [0, 1, 2]]),
        (Limits(0.0, max_detections=1), [[1], [0]]),
        (Limits(0.28, max_detections=3), [[1, 2], [0]]),
        (Limits(0.9, max_detections=3), [[], []]),
    ],
)
def test_best_classes_come_first_down_to_the_threshold(limits: Limits, labels: list[list[int]]) -> None:
    found = classify(20, 30)((LOGITS,), limits)
    for detections, expected, logits in zip(found, labels, LOGITS, strict=True):
        assert sorted(detections.labels.tolist()) == sorted(expected)
        assert detections.labels[:1].tolist() == expected[:1]
        torch.testing.assert_close(torch.from_numpy(detections.scores), logits.exp()[detections.labels])
        assert detections.boxes.shape == (len(expected), 4)
        assert all(box == [0, 0, 30, 20] for box in detections.boxes.tolist())


def test_no_class_found_equals_empty_detections() -> None:
    (found,) = classify(20, 30)((LOGITS[:1],), Limits(1.0))
    empty = Detections.empty()
    assert len(found) == len(empty) == 0
    for name in ("boxes", "scores", "labels"):
        assert getattr(found, name).shape == getattr(empty, name).shape
        assert getattr(found, name).dtype == getattr(empty, name).dtype
