"""Decoding of an SSD's box offsets into boxes (paper 004, MultiboxDetection, §3.1.1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from split_infer_ros.errors import ConfigurationError

WEIGHTS = (10.0, 10.0, 5.0, 5.0)
MAX_LOG_GROWTH = math.log(1000.0 / 16)  # limits the growth of an anchor's side, as in torchvision


def multibox_decode(
    offsets: Tensor,
    anchors: Tensor,
    *,
    weights: tuple[float, float, float, float] = WEIGHTS,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Decodes the offsets of a whole batch from n anchors into boxes.

    An anchor is moved by fractions of its size, and its sides grow by powers of e. The result equals torchvision's
    ``BoxCoder`` to the last bit. NaN stays NaN.

    Args:
        offsets: floating (..., n, 4), dx, dy, dw, dh, multiplied by the weights.
        anchors: (n, 4) of the same type, left, top, right, bottom in pixels.
        weights: the factors by which the offsets were multiplied.
        size: height and width of the input in pixels, to which boxes are clipped; None leaves them as they are.

    Returns:
        (..., n, 4), left, top, right, bottom in pixels.

    Raises:
        ConfigurationError: the shapes do not fit.
    """
    if offsets.ndim < 2 or anchors.shape != offsets.shape[-2:] or anchors.shape[-1] != 4:
        raise ConfigurationError(
            f"offsets {tuple(offsets.shape)} and anchors {tuple(anchors.shape)} do not fit: there are 4 offsets "
            f"(..., n, 4) for each of the (n, 4) anchors."
        )
    boxes = torch.empty_like(offsets)
    for axis in (0, 1):
        side = anchors[:, axis + 2] - anchors[:, axis]
        centre = (offsets[..., axis] / weights[axis]).mul_(side).add_(anchors[:, axis] + 0.5 * side)
        half = (offsets[..., axis + 2] / weights[axis + 2]).clamp_(max=MAX_LOG_GROWTH).exp_().mul_(side).mul_(0.5)
        low, high = centre - half, centre.add_(half)
        if size is not None:
            low, high = (edge.clamp_(0, size[1 - axis]) for edge in (low, high))
        boxes[..., axis], boxes[..., axis + 2] = low, high
    return boxes
