"""Lays out a drawn scene: chooses outlines, sizes and places of its objects, some of which overlap."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

CIRCLE, SQUARE, TRIANGLE = range(3)

_MIN_VISIBLE = 0.55  # the least visible share of an object's pixels; one half is promised
_RIM = 0.5  # pixels by which OpenCV's smoothed polygons extend beyond their corners
_SHIFT = 4  # fractional bits of OpenCV's coordinates: 16ths of a pixel


@dataclass(frozen=True, slots=True)
class Shape:
    """An object's outline.

    Attributes:
        label: CIRCLE, SQUARE or TRIANGLE.
        box: float32 (4,), the tight box: left, top, right, bottom in pixels.
        corners: float32 (number of corners, 2): x and y in pixels. They lie half a pixel inside the box. None for a
            circle.
    """

    label: int
    box: NDArray[np.float32]
    corners: NDArray[np.float32] | None

    def fill(self, image: NDArray[np.uint8], colour: tuple[float, ...], offset: tuple[int, int] = (0, 0)) -> None:
        """Draws the filled shape with smooth edges.

        Args:
            image: uint8 (height, width) or (height, width, channels), into which the shape is drawn.
            colour: one value from 0 to 255 for each channel.
            offset: x and y of the image's upper left corner, in the coordinates of the shape.
        """
        if self.corners is None:
            centre = (self.box[:2] + self.box[2:]) / 2 - offset
            radius = (self.box[2] - self.box[0]) / 2
            # In OpenCV's coordinates, a pixel's centre is at whole numbers. In a shape's coordinates, it is at halves.
            x, y, r = np.rint(np.array([*centre, radius]) * 16 - 8).astype(int).tolist()
            cv2.circle(image, (x, y), r, colour, -1, cv2.LINE_AA, _SHIFT)
        else:
            points = np.rint((self.corners - offset - 0.5) * 16).astype(np.int32)
            cv2.fillConvexPoly(image, points, colour, cv2.LINE_AA, _SHIFT)


def place_shapes(rng: np.random.Generator, width: int, height: int) -> list[Shape]:
    """Chooses the objects of a scene, and returns them in the order in which they are drawn.

    In half of the scenes, the boxes of the first two objects overlap.

    Args:
        rng: the source of random numbers.
        width, height: the size of the scene in pixels.
    """
    count = int(rng.integers(3, 13))
    overlapping = rng.random() < 0.5
    shapes: list[Shape] = []
    while len(shapes) < count:
        if overlapping:
            shapes += _pair(rng, width, height)
            overlapping = False
            continue
        for _ in range(50):
            shape = _shape(rng, _size(rng), width, height)
            if not any(touch(shape.box, other.box) for other in shapes):
                shapes.append(shape)
                break
        else:
            break  # the scene is full; three objects always fit
    return shapes


def _size(rng: np.random.Generator) -> float:
    if rng.random() < 0.33:
        return float(rng.uniform(12, 24))
    return float(24 * 5 ** rng.random())


def _shape(rng: np.random.Generator, size: float, width: int, height: int) -> Shape:
    """Makes a random shape somewhere in the image. The longer side of its box is ``size`` pixels at 640x480."""
    size *= min(width / 640, height / 480)
    label = int(rng.integers(3))
    extent, corners = np.array([size, size]), None
    if label != CIRCLE:
        angles = np.arange(4) / 4 if label == SQUARE else np.arange(3) / 3 + rng.uniform(-0.03, 0.03, 3)
        angles = 2 * np.pi * (angles + rng.random())
        corners = np.stack([np.cos(angles), np.sin(angles)], 1)
        corners -= corners.min(0)
        corners *= (size - 2 * _RIM) / corners.max()
        extent = corners.max(0) + 2 * _RIM
    low = rng.uniform(2, np.array([width, height]) - 2 - extent)
    box = np.concatenate([low, low + extent]).astype(np.float32)
    return Shape(label, box, None if corners is None else (corners + low + _RIM).astype(np.float32))


def _pair(rng: np.random.Generator, width: int, height: int) -> list[Shape]:
    """Makes two shapes whose boxes have an IoU of 0.1 to 0.4; ``_MIN_VISIBLE`` of the first one stays visible."""
    while True:
        first = _shape(rng, float(rng.uniform(20, 110)), width, height)
        scale = min(width / 640, height / 480)
        side = float((first.box[2:] - first.box[:2]).max()) / scale
        second = _shape(rng, float(np.clip(side * rng.uniform(0.6, 1.6), 16, 120)), width, height)
        direction = rng.normal(size=2)
        direction /= np.linalg.norm(direction)
        target_iou = rng.uniform(0.12, 0.38)
        near, far = 0.0, 240.0 * scale
        for _ in range(12):  # the IoU falls with the distance
            middle = (near + far) / 2
            moved = _moved(second, first, direction * middle)
            near, far = (middle, far) if _iou(first.box, moved.box) > target_iou else (near, middle)
        inside = (moved.box[:2] >= 2).all() and (moved.box[2:] <= np.array([width, height]) - 2).all()
        if inside and 0.11 < _iou(first.box, moved.box) < 0.39 and _hidden(first, moved) <= 1 - _MIN_VISIBLE:
            return [first, moved]


def _moved(shape: Shape, anchor: Shape, distance: NDArray[np.float64]) -> Shape:
    """Moves ``shape`` so that its centre lies at ``distance`` from the centre of ``anchor``."""
    centre = (shape.box[:2] + shape.box[2:]) / 2
    step = ((anchor.box[:2] + anchor.box[2:]) / 2 + distance - centre).astype(np.float32)
    corners = None if shape.corners is None else shape.corners + step
    return Shape(shape.label, shape.box + np.tile(step, 2), corners)


def touch(a: NDArray[np.float32], b: NDArray[np.float32], gap: float = 3) -> bool:
    """Returns whether two boxes are less than ``gap`` pixels apart. With 0, returns whether they overlap.

    ``a`` and ``b`` are float32 (4,): left, top, right and bottom in pixels.
    """
    return bool((a[:2] < b[2:] + gap).all() and (b[:2] < a[2:] + gap).all())


def _iou(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    overlap = float(np.prod(np.clip(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0, None)))
    return overlap / float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2]) - overlap)


def _hidden(first: Shape, second: Shape) -> float:
    """Returns the share of ``first`` that ``second`` covers. ``second`` is drawn later."""
    left, top = np.floor(first.box[:2]).astype(int).tolist()
    right, bottom = np.ceil(first.box[2:]).astype(int).tolist()
    below, above = (mask_of(shape, (left, top, right, bottom)) for shape in (first, second))
    return float((below & above).sum() / below.sum())


def mask_of(shape: Shape, window: tuple[int, int, int, int]) -> NDArray[np.bool_]:
    """Returns the shape's pixels in a window (left, top, right, bottom): bool (bottom - top, right - left)."""
    left, top, right, bottom = window
    mask = np.zeros((bottom - top, right - left), np.uint8)
    shape.fill(mask, (255,), offset=(left, top))
    return mask >= 128
