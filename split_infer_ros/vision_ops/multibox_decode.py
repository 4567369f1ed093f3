"""The boxes that an SSD means by its offsets (MultiboxDetection, §3.1.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from split_infer_ros.errors import ConfigurationError

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
LARGEST = math.log(1000.0 / 16)  # an anchor grows by no more


def multibox_decode(
    offsets: Tensor,
    anchors: Tensor,
    *,
    weights: tuple[float, float, float, float] = WEIGHTS,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Boxes of a whole batch: anchors moved by parts of their size, and grown by powers of e.

    The numbers are torchvision's ``BoxCoder``'s to the last bit, and NaN stays NaN.

    Args:
        offsets: floating (..., n, 4), dx, dy, dw, dh, times the weights.
        anchors: of the same type, (n, 4): left, top, right, bottom in pixels.
        weights: by which the offsets were multiplied.
        size: height and width in pixels of the input, to which boxes are split; None to leave them.

    Returns:
        (..., n, 4), left, top, right, bottom in pixels.

    Raises:
        ConfigurationError: shapes that do not fit.
    """
    if offsets.ndim < 2 or anchors.shape != offsets.shape[-2:] or anchors.shape[-1] != 4:
        raise ConfigurationError(
            f"offsets {tuple(offsets.shape)} and anchors {tuple(anchors.shape)} do not fit: there are 4 offsets "
            f"(..., n, 4) for each of the (n, 4) anchors."
        )
    boxes = torch.empty_like(offsets)
    for axis in (0, 1):
        side = anchors[:, axis + 2] - anchors[:, axis]
        middle = (offsets[..., axis] / weights[axis]).mul_(side).add_(anchors[:, axis] + 0.5 * side)
        half = (offsets[..., axis + 2] / weights[axis + 2]).clamp_(max=LARGEST).exp_().mul_(side).mul_(0.5)
        first, last = middle - half, middle.add_(half)
        if size is not None:
            first, last = (edge.clamp_(0, size[1 - axis]) for edge in (first, last))
        boxes[..., axis], boxes[..., axis + 2] = first, last
    return boxes
