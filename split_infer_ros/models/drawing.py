"""Draws detections into pictures."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Detections
from split_infer_ros.runtime.text import repair_text

# A colour for each label, from Okabe and Ito's set for the colour-blind, without black.
COLOURS = ((230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0), (204, 121, 167))


def draw_detections(pixels: Pixels, detections: Detections, labels: Sequence[str]) -> np.ndarray:
    """Draws a captioned box for each detection into a copy of an image.

    Args:
        pixels: the image, which is not changed.
        detections: the detections, with boxes in pixels of the image.
        labels: the class names. A detection's label is an index of this list.

    Returns:
        uint8 (height, width, 3), red first; a new array.
    """
    picture = np.take(pixels.data, pixels.rgb, axis=2)
    scale = max(0.4, picture.shape[0] / 1200)
    for box, score, label in zip(
        detections.boxes.tolist(), detections.scores.tolist(), detections.labels.tolist(), strict=True
    ):
        left, top, right, bottom = (round(corner) for corner in box)
        colour = COLOURS[label % len(COLOURS)]
        cv2.rectangle(picture, (left, top), (right, bottom), colour, 2)
        _draw_caption(
            picture, f"{repair_text(labels[label])} {score:.2f}", left=left, top=top, colour=colour, scale=scale
        )
    return picture


def _draw_caption(
    picture: np.ndarray, text: str, *, left: int, top: int, colour: tuple[int, int, int], scale: float
) -> None:
    """Writes dark text on the box's colour: above the box, or inside the box if there is no room above it."""
    (width, height), below = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 1)
    left = max(0, min(left, picture.shape[1] - width))
    base = top - below if top > height + below else top + height + below
    cv2.rectangle(picture, (left, base - height - 2), (left + width, base + below), colour, cv2.FILLED)
    cv2.putText(picture, text, (left, base), cv2.FONT_HERSHEY_SIMPLEX, scale, (0, 0, 0), 1, cv2.LINE_AA)
