"""From the samples of an image message to 8-bit pixels: each decoder makes a new uint8 array.

Samples are (height, width, channels) with rows that may be padded. The bounds that OpenCV sets (even sizes and the
like) are checked by the caller.
"""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

# a float as large as this is no measurement; it also keeps the span of two of them finite
_BEYOND = 1e38


def full_range(samples: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """16-bit grey values or colours to 8 bits: 0..65535 becomes 0..255, rounded, the same for every image."""
    return np.asarray(cv2.convertScaleAbs(samples, alpha=1 / 257), np.uint8).reshape(samples.shape)


def stretched(samples: NDArray[Any]) -> NDArray[np.uint8]:
    """Measurements to 8 bits: the image's own least value becomes 0 and its greatest 255, as viewers show them.

    Args:
        samples: uint16 or float32 (height, width, 1). NaN (no measurement) and -inf (too near) become 0, +inf (too
            far) 255; an image of one value becomes 0.
    """
    values = samples[..., 0]
    if values.dtype == np.uint16:
        grey = cv2.normalize(values, None, 0, 255, cv2.NORM_MINMAX, dtype=cv2.CV_8U)  # type: ignore[call-overload]
    else:
        least, greatest, *_ = cv2.minMaxLoc(values, mask=cv2.inRange(values, -_BEYOND, _BEYOND))
        low, span = np.float32(least), greatest - least
        bounded = np.fmin(np.fmax(values, low), np.float32(greatest))  # of NaN and a number these give the number
        grey = cv2.convertScaleAbs(bounded - low, alpha=255 / span if span else 0.0)
    return np.asarray(grey, np.uint8)[..., np.newaxis]


def bayer(samples: NDArray[Any], code: int) -> NDArray[np.uint8]:
    """The raw mosaic of a colour sensor, 8 or 16 bits, to colours, bilinearly.

    Args:
        code: OpenCV's, which also says the order of the colours.
    """
    mosaic = samples if samples.dtype == np.uint8 else full_range(samples)
    return np.asarray(cv2.cvtColor(mosaic, code), np.uint8)


def packed_yuv(samples: NDArray[np.uint8], code: int) -> NDArray[np.uint8]:
    """YUV 4:2:2 (height, width, 2), two neighbours sharing their colour, to colours (BT.601, limited range)."""
    return np.asarray(cv2.cvtColor(samples, code), np.uint8)


def semi_planar_yuv(samples: NDArray[np.uint8], code: int) -> NDArray[np.uint8]:
    """YUV 4:2:0 to colours (BT.601, limited range).

    Args:
        samples: (3/2 height, width, 1): the plane of brightness, below it that of colours at half the size.
    """
    height, width = samples.shape[0] // 3 * 2, samples.shape[1]
    brightness, colours = samples[:height, :, 0], samples[height:, :, 0].reshape(height // 2, width // 2, 2)
    return np.asarray(cv2.cvtColorTwoPlane(brightness, colours, code), np.uint8)
