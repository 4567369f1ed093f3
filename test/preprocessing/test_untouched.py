"""Payloads reach a task as they came, and its boxes end with an image."""

from __future__ import annotations

import numpy as np

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.preprocessing.untouched import Untouched, UntouchedPreprocessor


def test_payloads_are_not_touched() -> None:
    payloads = [Pixels.blank(), np.zeros((3, 3), np.float32)]
    batch = UntouchedPreprocessor().load(payloads).images
    assert [each is payload for each, payload in zip(batch, payloads, strict=True)] == [True, True]


def test_boxes_end_with_the_image_and_not_with_a_cloud() -> None:
    boxes = np.array([[-1e30, 2, 1e30, 5], [1, 1, 3, 20]], np.float32)
    assert Untouched().to_source(boxes, 10, 30).tolist() == [[0, 2, 30, 5], [1, 1, 3, 10]]
    cube = np.array([[-1e3, 2, 1, 1e3, 5, 6]], np.float32)
    assert Untouched().to_source(cube, 0, 0) is cube
