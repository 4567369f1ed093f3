"""Smooth resizing of images on the host, by torch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch.nn import functional

from split_infer_ros.buffers.host_arrays import as_tensor


def resize_smoothly(image: NDArray[np.uint8], height: int, width: int, interpolation: str) -> NDArray[np.uint8]:
    """Resizes an image as image libraries do: shrinking smooths, and the result is rounded to whole grey values.

    torch does this with integer weights and wide registers. OpenCV has no such resizing.

    Args:
        image: uint8 (H, W, channels).
        height, width: of the result, in pixels.
        interpolation: ``bilinear`` or ``bicubic``.

    Returns:
        uint8 (height, width, channels).
    """
    planes = as_tensor(image).unsqueeze(0).permute(0, 3, 1, 2)
    resized = functional.interpolate(planes, size=(height, width), mode=interpolation, antialias=True)
    found: NDArray[np.uint8] = resized.permute(0, 2, 3, 1)[0].numpy()
    return found
