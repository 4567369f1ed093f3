"""Pixels of a ``sensor_msgs/Image`` as a tensor: without a copy where the message holds 8-bit colours or greys."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images import decoders

RGB, BGR, GREY = (0, 1, 2), (2, 1, 0), (0, 0, 0)

MAX_PIXELS = 7680 * 4320  # 8K


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image in memory.

    Attributes:
        data: uint8 (height, width, bytes a pixel); rows may be padded. A view of the message's own bytes, or new.
        rgb: which byte of a pixel is red, green and blue.
    """

    data: Tensor
    rgb: tuple[int, int, int]

    @property
    def height(self) -> int:
        """Rows."""
        return self.data.shape[0]

    @property
    def width(self) -> int:
        """Pixels a row."""
        return self.data.shape[1]

    @classmethod
    def blank(cls) -> Pixels:
        """A black picture of 640x480, for trying things out."""
        return cls(torch.zeros((480, 640, 3), dtype=torch.uint8), (0, 1, 2))


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a message holds an image.

    Attributes:
        channels: samples a pixel in a row.
        rgb: which channel of the 8-bit pixels is red, green and blue.
        decode: samples (rows, width, channels) to new 8-bit pixels (height, width, any); None: they are that already.
        sample: dtype of a sample.
        rows: of samples, to two rows of the image; more than two where planes lie below each other.
        multiple: what the height and the width must be multiples of.
        least: what the height and the width must at least be.
        size: bytes a pixel in a row.
    """

    channels: int
    rgb: tuple[int, int, int]
    decode: Callable[[NDArray[Any]], NDArray[np.uint8]] | None = None
    sample: DTypeLike = np.uint8
    rows: int = 2
    multiple: tuple[int, int] = (1, 1)
    least: int = 1
    size: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.channels * np.dtype(self.sample).itemsize)


def _bayer(code: int, sample: DTypeLike) -> Encoding:
    # OpenCV leaves smaller images black
    return Encoding(1, RGB, partial(decoders.bayer, code=code), sample, least=3)


def _packed_yuv(code: int) -> Encoding:
    return Encoding(2, RGB, partial(decoders.packed_yuv, code=code), multiple=(1, 2))


def _semi_planar_yuv(code: int) -> Encoding:
    return Encoding(1, RGB, partial(decoders.semi_planar_yuv, code=code), rows=3, multiple=(2, 2))


# by their names in sensor_msgs/image_encodings.hpp; what OpenCV types hold is in OpenCV's order of colours
ENCODINGS: dict[str, Encoding] = {
    "rgb8": Encoding(3, RGB),
    "bgr8": Encoding(3, BGR),
    "rgba8": Encoding(4, RGB),
    "bgra8": Encoding(4, BGR),
    "mono8": Encoding(1, GREY),
    "8UC1": Encoding(1, GREY),
    "8UC3": Encoding(3, BGR),
    "8UC4": Encoding(4, BGR),
    "rgb16": Encoding(3, RGB, decoders.full_range, np.uint16),
    "bgr16": Encoding(3, BGR, decoders.full_range, np.uint16),
    "rgba16": Encoding(4, RGB, decoders.full_range, np.uint16),
    "bgra16": Encoding(4, BGR, decoders.full_range, np.uint16),
    "mono16": Encoding(1, GREY, decoders.full_range, np.uint16),
    "16UC1": Encoding(1, GREY, decoders.stretched, np.uint16),
    "32FC1": Encoding(1, GREY, decoders.stretched, np.float32),
    "uyvy": _packed_yuv(cv2.COLOR_YUV2RGB_UYVY),
    "yuv422": _packed_yuv(cv2.COLOR_YUV2RGB_UYVY),
    "yuyv": _packed_yuv(cv2.COLOR_YUV2RGB_YUYV),
    "yuv422_yuy2": _packed_yuv(cv2.COLOR_YUV2RGB_YUYV),
    "nv12": _semi_planar_yuv(cv2.COLOR_YUV2RGB_NV12),
    "nv21": _semi_planar_yuv(cv2.COLOR_YUV2RGB_NV21),
    "bayer_rggb8": _bayer(cv2.COLOR_BayerRGGB2RGB, np.uint8),
    "bayer_bggr8": _bayer(cv2.COLOR_BayerBGGR2RGB, np.uint8),
    "bayer_gbrg8": _bayer(cv2.COLOR_BayerGBRG2RGB, np.uint8),
    "bayer_grbg8": _bayer(cv2.COLOR_BayerGRBG2RGB, np.uint8),
    "bayer_rggb16": _bayer(cv2.COLOR_BayerRGGB2RGB, np.uint16),
    "bayer_bggr16": _bayer(cv2.COLOR_BayerBGGR2RGB, np.uint16),
    "bayer_gbrg16": _bayer(cv2.COLOR_BayerGBRG2RGB, np.uint16),
    "bayer_grbg16": _bayer(cv2.COLOR_BayerGRBG2RGB, np.uint16),
}


def read_pixels(
    data: Any,
    height: int,
    width: int,
    encoding: str,
    step: int,
    is_bigendian: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> Pixels:
    """The image of an image message.

    Colours and greys of 8 bits are viewed where they lie; all else is decoded into new memory: colours and greys of
    16 bits are scaled from their full range (mono16 65535 becomes 255), as cv_bridge does; 16UC1 and 32FC1, which
    are measurements such as depth, from the image's own least to its greatest value.

    Args:
        data: any object with the buffer protocol, at least ``step * height`` bytes (nv12, nv21: 3/2 of that, the
            colours in rows of ``step`` bytes too).
        height, width: of the image in pixels.
        encoding: a key of ENCODINGS.
        step: bytes a row, padding included.
        is_bigendian: the byte order of samples of more than 8 bits.
        max_pixels: a larger image is refused.

    Raises:
        ImageError: ``unknown_encoding``, ``empty_image``, ``too_large``, ``bad_size``, ``bad_step`` or
            ``truncated_image``.
    """
    layout = ENCODINGS.get(encoding)
    if layout is None:
        raise ImageError(
            DropReason.UNKNOWN_ENCODING, f"Image encoding '{encoding}' is not read; send one of {', '.join(ENCODINGS)}."
        )
    check_size(height, width, max_pixels)
    down, across = layout.multiple
    if height % down or width % across or min(height, width) < layout.least:
        needed = f"at least {layout.least}x{layout.least}" if layout.least > 1 else f"multiples of {across}x{down}"
        raise ImageError(
            DropReason.BAD_SIZE, f"An image of {width}x{height} pixels cannot be {encoding}, which needs {needed}."
        )
    line = width * layout.size
    if step < line:
        raise ImageError(
            DropReason.BAD_STEP, f"step is {step} bytes, but a row of {width} {encoding} pixels has {line}."
        )
    rows = height * layout.rows // 2
    held = memoryview(data).nbytes
    if held < step * rows:
        raise ImageError(
            DropReason.TRUNCATED_IMAGE,
            f"The image holds {held:,} bytes; {rows} rows of {step} bytes need {step * rows:,}.",
        )
    packed = np.frombuffer(data, dtype=np.uint8, count=step * rows).reshape(rows, step)[:, :line]
    if layout.decode is None:
        pixels = packed.reshape(rows, width, layout.channels)
        if not pixels.flags.writeable:  # torch wants to be able to write; nobody here does
            pixels = pixels.copy()
    else:
        samples = packed.view(layout.sample).reshape(rows, width, layout.channels)
        if samples.itemsize > 1 and is_bigendian != (sys.byteorder == "big"):
            samples = samples.byteswap()
        pixels = layout.decode(np.require(samples, requirements="A"))
    return Pixels(torch.from_numpy(pixels), layout.rgb)


def check_size(height: int, width: int, max_pixels: int) -> None:
    """Refuses an image by its size.

    Raises:
        ImageError: ``empty_image`` or ``too_large``.
    """
    if height < 1 or width < 1:
        raise ImageError(DropReason.EMPTY_IMAGE, f"An image of {width}x{height} pixels has nothing to look at.")
    if height * width > max_pixels:
        raise ImageError(
            DropReason.TOO_LARGE,
            f"An image of {width}x{height} pixels has more than {max_pixels:,}, the most that is read.",
        )
