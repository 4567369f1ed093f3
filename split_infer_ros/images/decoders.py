"""Decoders from the samples of an image message to 8-bit pixels. Each of them makes a new uint8 array.

Samples are (height, width, channels), and their rows may be padded. The caller checks the sizes that OpenCV requires,
for example even sizes.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

_MAX_MEASUREMENT = 1e38  # larger floats are not measurements; so the span of two measurements stays finite


def scale_full_range(samples: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Scales 16-bit grey values or colours to 8 bits: 0..65535 becomes 0..255, rounded. The shape stays."""
    return np.asarray(cv2.convertScaleAbs(samples, alpha=1 / 257), np.uint8).reshape(samples.shape)


def stretch_contrast(samples: NDArray[Any]) -> NDArray[np.uint8]:
    """Stretches measurements to 8 bits: the image's own minimum becomes 0 and its maximum 255, as in viewers.

    Args:
        samples: integers or floats (height, width, 1). NaN (no measurement) and -inf (too near) become 0. +inf (too
            far) becomes 255. If all values are equal, they become 0.
    """
    values = samples[..., 0]
    if values.dtype.kind == "i":
        values = values.astype(np.float64)  # exact
    if values.dtype == np.uint16:
        grey = cv2.normalize(values, None, 0, 255, cv2.NORM_MINMAX, dtype=cv2.CV_8U)  # type: ignore[call-overload]
    else:
        minimum, maximum, *_ = cv2.minMaxLoc(values, mask=cv2.inRange(values, -_MAX_MEASUREMENT, _MAX_MEASUREMENT))
        number = values.dtype.type
        low, span = number(minimum), maximum - minimum
        bounded = np.fmin(np.fmax(values, low), number(maximum))  # fmin and fmax replace NaN by the other number
        distances = bounded - low
        if number is np.float64 and span:  # OpenCV scales by a 32-bit float, and 255 / span may overflow it
            distances, span = distances / span, 1.0
        grey = cv2.convertScaleAbs(distances, alpha=255 / span if span else 0.0)
    return np.asarray(grey, np.uint8)[..., np.newaxis]


def decode_bayer(samples: NDArray[Any], code: int) -> NDArray[np.uint8]:
    """Interpolates the raw mosaic of a colour sensor (8 or 16 bits) to colours, bilinearly.

    Args:
        samples: uint8 or uint16 (height, width, 1).
        code: OpenCV's conversion code, which contains the order of the colours.
    """
    mosaic = samples if samples.dtype == np.uint8 else scale_full_range(samples)
    return np.asarray(cv2.cvtColor(mosaic, code), np.uint8)


def decode_packed_yuv(samples: NDArray[np.uint8], code: int) -> NDArray[np.uint8]:
    """Converts YUV 4:2:2 to colours (BT.601, limited range). In a row, two neighbouring pixels share one colour.

    Args:
        samples: uint8 (height, width, 2), with an even width.
        code: OpenCV's conversion code, which contains the order of the samples.
    """
    return np.asarray(cv2.cvtColor(samples, code), np.uint8)


def decode_semi_planar_yuv(samples: NDArray[np.uint8], code: int) -> NDArray[np.uint8]:
    """Converts YUV 4:2:0 to colours (BT.601, limited range).

    Args:
        samples: uint8 (3/2 height, width, 1), the plane of brightness above the plane of colours. The plane of colours
            has half the rows.
        code: OpenCV's conversion code, which contains the order of the colours.
    """
    height, width = samples.shape[0] // 3 * 2, samples.shape[1]
    brightness, colours = samples[:height, :, 0], samples[height:, :, 0].reshape(height // 2, width // 2, 2)
    return np.asarray(cv2.cvtColorTwoPlane(brightness, colours, code), np.uint8)
