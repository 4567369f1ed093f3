"""Resizes images on the host and smooths images that shrink. torch does so in a process that has it, else Pillow."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.buffers.host_arrays import as_tensor

MODES = {1: "L", 3: "RGB", 4: "RGBX"}  # Pillow's modes by channels; the X of RGBX is no transparency


def resize_smoothly(image: NDArray[np.uint8], height: int, width: int, interpolation: str) -> NDArray[np.uint8]:
    """Resizes an image as image libraries do: an image that shrinks is smoothed, and grey values are rounded.

    OpenCV has no such resizing. If the process has already imported torch, torch resizes, in a tenth of Pillow's time.
    Otherwise Pillow resizes, so that torch is not imported for this. With ``bilinear``, the results of torch and Pillow
    differ by one grey value at most. With ``bicubic``, they differ by a few grey values at hard edges.

    Args:
        image: uint8 (H, W, channels), of 1, 3 or 4 channels.
        height, width: the size of the result in pixels.
        interpolation: ``bilinear`` or ``bicubic``.

    Returns:
        uint8 (height, width, channels).
    """
    resize = _by_torch if "torch" in sys.modules else _by_pillow
    found: NDArray[np.uint8] = resize(image, height, width, interpolation)
    return found


def _by_torch(image: NDArray[np.uint8], height: int, width: int, interpolation: str) -> Any:
    from torch.nn import functional  # only here: see above

    planes = as_tensor(image).unsqueeze(0).permute(0, 3, 1, 2)
    resized = functional.interpolate(planes, size=(height, width), mode=interpolation, antialias=True)
    return resized.permute(0, 2, 3, 1)[0].numpy()


def _by_pillow(image: NDArray[np.uint8], height: int, width: int, interpolation: str) -> Any:
    from PIL import Image  # only here: few models need it

    rows, columns, channels = image.shape
    mode, resampling = MODES[channels], Image.Resampling[interpolation.upper()]
    picture = Image.frombuffer(mode, (columns, rows), np.ascontiguousarray(image), "raw", mode, 0, 1)
    return np.asarray(picture.resize((width, height), resampling)).reshape(height, width, channels)
