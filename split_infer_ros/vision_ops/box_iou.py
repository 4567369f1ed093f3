"""How much boxes overlap, on the host: their intersection over union.

Each operation is rounded separately, as in torchvision's ``box_iou`` and ``nms``. So the results equal torchvision's to
the last bit.
"""

from __future__ import annotations

import numpy as np

from split_infer_ros.buffers.host_arrays import Flags, Floats


def box_iou(first: Floats, second: Floats) -> Floats:
    """Returns the overlap of each of n boxes with each of m other boxes.

    Args:
        first: floating (n, 4), left, top, right, bottom in any unit.
        second: floating (m, 4), likewise.

    Returns:
        floating (n, m), 0..1 for boxes that are not inverted. It is NaN for two boxes without an area, and for a box
        that has a corner that is NaN.
    """
    with np.errstate(all="ignore"):
        return _overlap(first.T[:, :, None], np.ascontiguousarray(second.T)[:, None])


def overlaps(first: Floats, second: Floats, iou_threshold: float) -> Flags:
    """Returns where boxes overlap by more than a threshold.

    A box with an area that is NaN overlaps nothing.

    Args:
        first, second: floating (4, ...) each, left, top, right, bottom. NumPy must be able to broadcast their shapes.
        iou_threshold: the threshold of the intersection over union, 0..1.

    Returns:
        bool, of the shape to which both are broadcast, without its first dimension.
    """
    with np.errstate(all="ignore"):
        flags: Flags = _overlap(first, second) > np.float64(iou_threshold)  # float32 would round the threshold
    return flags


def _overlap(first: Floats, second: Floats) -> Floats:
    """Returns the intersection over union of boxes (4, ...). Steps work in place, because new arrays cost time."""
    width = np.minimum(first[2], second[2])
    width -= np.maximum(first[0], second[0])
    height = np.minimum(first[3], second[3])
    height -= np.maximum(first[1], second[1])
    np.maximum(width, 0, out=width)
    np.maximum(height, 0, out=height)
    intersection: Floats = np.multiply(width, height, out=width)
    union = np.add(_area(first), _area(second), out=height)
    union -= intersection
    intersection /= union
    return intersection


def _area(boxes: Floats) -> Floats:
    left, top, right, bottom = boxes
    area: Floats = (right - left) * (bottom - top)
    return area
