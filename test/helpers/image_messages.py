"""Makes image messages with random values in any encoding, to compare decoders."""

from __future__ import annotations

import array
import sys
from typing import Any

import numpy as np
from sensor_msgs.msg import Image

NATIVE = sys.byteorder == "big"


def random_samples(dtype: Any, *shape: int) -> np.ndarray:
    """Returns an array of random integers over the whole range of the dtype, or of floats between -3 and 9."""
    generator = np.random.default_rng(7)
    if np.dtype(dtype).kind == "f":
        return generator.uniform(-3, 9, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def message_of(samples: np.ndarray, encoding: str, *, padding: int = 0, is_bigendian: bool = NATIVE) -> Image:
    """Returns the message of an image.

    Args:
        samples: (height, width, channels) in this machine's byte order.
        encoding: the message's encoding.
        padding: the number of unused bytes after each row.
        is_bigendian: the byte order of the message's samples.
    """
    height, width = samples.shape[:2]
    ordered = samples.astype(samples.dtype.newbyteorder(">" if is_bigendian else "<"))
    rows = np.pad(ordered.reshape(height, -1).view(np.uint8), ((0, 0), (0, padding)), constant_values=99)
    return Image(
        height=height,
        width=width,
        encoding=encoding,
        step=rows.shape[1],
        is_bigendian=int(is_bigendian),
        data=array.array("B", rows.tobytes()),
    )
