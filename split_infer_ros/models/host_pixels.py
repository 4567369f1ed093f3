"""Resizes, reorders and normalises images on the host, by OpenCV and NumPy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from split_infer_ros.images.encodings import BGR, GREY, RGB
from split_infer_ros.models.fitting import Window

Colour = tuple[float, float, float]
Values = tuple[float, ...]  # one for each channel

MAX_TABLES = 64  # cached tables of normalised grey values, one for each mean and std
LEVELS = 256  # grey values of a byte

_INTERPOLATIONS = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}
_CONVERSIONS = {
    (1, GREY): cv2.COLOR_GRAY2RGB,
    (3, BGR): cv2.COLOR_BGR2RGB,
    (4, RGB): cv2.COLOR_RGBA2RGB,
    (4, BGR): cv2.COLOR_BGRA2RGB,
}


def resize(image: NDArray[Any], height: int, width: int, interpolation: str) -> NDArray[Any]:
    """Resizes an image as OpenCV does: an image that shrinks is not smoothed.

    Args:
        image: uint8 or float32 (H, W, channels). For uint8, the result is rounded to whole grey values.
        height, width: the size of the result in pixels.
        interpolation: ``bilinear`` or ``bicubic``.

    Returns:
        (height, width, channels), of the image's dtype.
    """
    resized = cv2.resize(image, (width, height), interpolation=_INTERPOLATIONS[interpolation])
    return np.asarray(resized).reshape(height, width, -1)


def write_reordered(image: NDArray[Any], order: tuple[int, int, int], target: NDArray[Any]) -> None:
    """Writes three channels of an image into a buffer.

    Args:
        image: (h, w, channels), of 1, 3 or 4 channels.
        order: for each channel of the buffer, the index of the image's channel that is written there.
        target: the buffer, (h, w, 3) of the image's dtype.
    """
    channels = image.shape[2]
    conversion = _CONVERSIONS.get((channels, order))
    if conversion is not None:
        cv2.cvtColor(image, conversion, dst=target)
    else:
        target[...] = image if (channels, order) == (3, RGB) else image[..., list(order)]


def fill_outside(target: NDArray[Any], place: Window, colour: Colour) -> None:
    """Fills a buffer outside a window with a colour.

    Args:
        target: the buffer, (h, w, 3).
        place: the rows and columns of the window, which are left as they are.
        colour: a number of 0..255 for each channel. Three equal numbers are faster.
    """
    rows, columns = place
    value = colour[0] if len(set(colour)) == 1 else colour
    target[: rows.start] = value
    target[rows.stop :] = value
    target[rows, : columns.start] = value
    target[rows, columns.stop :] = value


def normalise(images: NDArray[Any], mean: Colour, std: Colour, *, channels_last: bool) -> NDArray[np.float32]:
    """Returns (value / 255 - mean) / std of images, float32 (n, 3, h, w) in new memory.

    Args:
        images: uint8 or float32 of 0..255, (n, h, w, 3), contiguous.
        mean, std: one number for each channel, on the 0..1 scale.
        channels_last: whether the channels of a pixel lie side by side in the result's memory.
    """
    count, height, width, channels = images.shape
    is_whole = images.dtype == np.uint8
    if channels_last:
        rows = images.reshape(count * height, width, channels)
        pixels = cv2.LUT(rows, _table(mean, std)) if is_whole else _scaled_rows(rows, mean, std)
        nested: NDArray[np.float32] = pixels.reshape(images.shape).transpose(0, 3, 1, 2)
        return nested
    planes = np.empty((count, channels, height, width), np.float32)
    for image, target in zip(images, planes, strict=True):
        # OpenCV separates the channels first. That takes half the time of reading interleaved channels.
        for channel, low, spread, plane in zip(cv2.split(image), mean, std, target, strict=True):
            if is_whole:
                cv2.LUT(channel, _table((low,), (spread,)), dst=plane)
            else:
                factor, offset = _line((low,), (spread,))
                np.multiply(channel, factor, out=plane)
                plane += offset
    return planes


def _scaled_rows(rows: NDArray[np.float32], mean: Colour, std: Colour) -> NDArray[np.float32]:
    """Normalises pixels (rows, width, 3) by arithmetic, a row at a time: NumPy is slow at steps of three numbers."""
    width = rows.shape[1]
    factors, offsets = (np.tile(each, width) for each in _line(mean, std))
    pixels = rows.reshape(len(rows), -1) * factors
    pixels += offsets
    return pixels


def _line(mean: Values, std: Values) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns factor and offset of each channel: a pixel of 0..255 becomes pixel * factor + offset."""
    factors = [1 / (255 * spread) for spread in std]
    offsets = [-low / spread for low, spread in zip(mean, std, strict=True)]
    return np.array(factors, np.float32), np.array(offsets, np.float32)


@lru_cache(MAX_TABLES)
def _table(mean: Values, std: Values) -> NDArray[np.float32]:
    """Returns the normalised value of each grey level, float32 (1, 256, channels). A table is as fast as arithmetic.

    Only the sum is rounded, and not the product before it. So both memory layouts hold the same bits.
    """
    factors, offsets = (each.astype(np.float64) for each in _line(mean, std))
    return (np.arange(LEVELS)[:, None] * factors + offsets).astype(np.float32)[None]
