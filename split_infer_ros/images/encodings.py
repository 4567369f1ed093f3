"""Reads the pixels of a ``sensor_msgs/Image`` as an array. 8-bit colours and greys are not copied."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import DTypeLike, NDArray

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images import decoders
from split_infer_ros.images.sizes import MAX_PIXELS, check_size

RGB, BGR, GREY = (0, 1, 2), (2, 1, 0), (0, 0, 0)

MAX_SHOWN = 40  # the most characters of an unknown encoding that an error repeats


@dataclass(frozen=True, slots=True)
class Pixels:
    """An image in memory.

    Attributes:
        data: uint8 (height, width, bytes per pixel), a view of the message's bytes or new memory. Rows may be padded.
            Do not write to it: a view of a read-only message is also read-only.
        rgb: the indices of the red, green and blue byte of a pixel.
    """

    data: NDArray[np.uint8]
    rgb: tuple[int, int, int]

    @property
    def height(self) -> int:
        """The number of rows."""
        return int(self.data.shape[0])

    @property
    def width(self) -> int:
        """The number of pixels in a row."""
        return int(self.data.shape[1])

    @property
    def nbytes(self) -> int:
        """The bytes of all pixels."""
        return int(self.data.nbytes)

    @classmethod
    def blank(cls) -> Pixels:
        """Makes a black image of 640x480 pixels, for warm-ups and trials."""
        return cls(np.zeros((480, 640, 3), np.uint8), RGB)


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a message with this encoding holds an image.

    Attributes:
        channels: samples per pixel in a row.
        rgb: the indices of the red, green and blue channel of the 8-bit pixels.
        decode: converts samples (rows, width, channels) to new 8-bit pixels (height, width, channels of the result).
            None if the samples are already 8-bit pixels.
        dtype: the type of a sample.
        rows_per_pair: rows of samples for every two rows of the image; more than two if planes lie below each other.
        multiple: the numbers by which the height and the width must be divisible.
        min_side: the smallest height and width.
        pixel_bytes: bytes per pixel in a row.
    """

    channels: int
    rgb: tuple[int, int, int]
    decode: Callable[[NDArray[Any]], NDArray[np.uint8]] | None = None
    dtype: DTypeLike = np.uint8
    rows_per_pair: int = 2
    multiple: tuple[int, int] = (1, 1)
    min_side: int = 1
    pixel_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixel_bytes", self.channels * np.dtype(self.dtype).itemsize)


FindEncoding = Callable[[str], Encoding]  # finds an encoding by name; raises an ImageError for an unknown name


def _bayer(code: int, dtype: DTypeLike) -> Encoding:
    # OpenCV leaves images with a side of less than 3 pixels black.
    return Encoding(1, RGB, partial(decoders.decode_bayer, code=code), dtype=dtype, min_side=3)


def _16_bits(channels: int, rgb: tuple[int, int, int]) -> Encoding:
    return Encoding(channels, rgb, decoders.scale_full_range, dtype=np.uint16)


def _measurements(dtype: DTypeLike) -> Encoding:
    return Encoding(1, GREY, decoders.stretch_contrast, dtype=dtype)


def _packed_yuv(code: int) -> Encoding:
    return Encoding(2, RGB, partial(decoders.decode_packed_yuv, code=code), multiple=(1, 2))


def _semi_planar_yuv(code: int) -> Encoding:
    return Encoding(1, RGB, partial(decoders.decode_semi_planar_yuv, code=code), rows_per_pair=3, multiple=(2, 2))


# The names are those of sensor_msgs/image_encodings.hpp. OpenCV types (8UC3, ...) have blue first, as in OpenCV.
ENCODINGS: dict[str, Encoding] = {
    "rgb8": Encoding(3, RGB),
    "bgr8": Encoding(3, BGR),
    "rgba8": Encoding(4, RGB),
    "bgra8": Encoding(4, BGR),
    "mono8": Encoding(1, GREY),
    "8UC1": Encoding(1, GREY),
    "8UC3": Encoding(3, BGR),
    "8UC4": Encoding(4, BGR),
    "rgb16": _16_bits(3, RGB),
    "bgr16": _16_bits(3, BGR),
    "rgba16": _16_bits(4, RGB),
    "bgra16": _16_bits(4, BGR),
    "mono16": _16_bits(1, GREY),
    "16UC1": _measurements(np.uint16),
    "32FC1": _measurements(np.float32),
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
    *,
    height: int,
    width: int,
    encoding: str,
    step: int,
    is_bigendian: bool = False,
    max_pixels: int = MAX_PIXELS,
    find_other: FindEncoding | None = None,
) -> Pixels:
    """Reads the image of an image message.

    For colours and greys of 8 bits, the pixels are a view of the message. All others are decoded into new memory:

    - Colours and greys of 16 bits are scaled from their full range, as cv_bridge does: mono16 65535 becomes 255.
    - 16UC1 and 32FC1 hold measurements such as depth. The image's own minimum becomes 0, and its maximum 255.

    Args:
        data: any object with the buffer protocol, at least ``step * height`` bytes. The encodings nv12 and nv21
            need 3/2 of that. Their colours are also in rows of ``step`` bytes.
        height, width: the size of the image in pixels.
        encoding: a key of ENCODINGS, or a name that ``find_other`` knows.
        step: bytes per row, including padding.
        is_bigendian: the byte order of samples of more than 8 bits.
        max_pixels: the most pixels; a larger image is refused.
        find_other: called with the name of an encoding that is not in ENCODINGS. None: such an encoding is refused.

    Raises:
        ImageError: ``unknown_encoding``, ``empty_image``, ``too_large``, ``bad_size``, ``bad_step`` or
            ``truncated_image``, or an error of ``find_other`` or of the decoder that it found.
    """
    layout = ENCODINGS.get(encoding)
    if layout is None:
        if find_other is None:
            raise unknown_encoding(encoding)
        layout = find_other(encoding)
    check_size(height, width, max_pixels)
    height_divisor, width_divisor = layout.multiple
    if height % height_divisor or width % width_divisor or min(height, width) < layout.min_side:
        if layout.min_side > 1:
            needed = f"at least {layout.min_side}x{layout.min_side}"
        else:
            needed = f"multiples of {width_divisor}x{height_divisor}"
        raise ImageError(
            DropReason.BAD_SIZE, f"An image of {width}x{height} pixels cannot be {encoding}, which needs {needed}."
        )
    row_bytes = width * layout.pixel_bytes
    if step < row_bytes:
        raise ImageError(
            DropReason.BAD_STEP, f"step is {step} bytes, but a row of {width} {encoding} pixels has {row_bytes}."
        )
    rows = height * layout.rows_per_pair // 2
    data_bytes = memoryview(data).nbytes
    if data_bytes < step * rows:
        raise ImageError(
            DropReason.TRUNCATED_IMAGE,
            f"The image has {data_bytes:,} bytes; {rows} rows of {step} bytes need {step * rows:,}.",
        )
    packed = np.frombuffer(data, dtype=np.uint8, count=step * rows).reshape(rows, step)[:, :row_bytes]
    if layout.decode is None:
        pixels = packed.reshape(rows, width, layout.channels)
    else:
        samples = packed.view(layout.dtype).reshape(rows, width, layout.channels)
        if samples.itemsize > 1 and is_bigendian != (sys.byteorder == "big"):
            samples = samples.byteswap()
        pixels = layout.decode(np.require(samples, requirements="A"))
    return Pixels(pixels, layout.rgb)


class ImageMessage(Protocol):
    """The fields of a ``sensor_msgs/Image``. Any library may have made the message."""

    data: Any
    height: int
    width: int
    encoding: str
    step: int
    is_bigendian: Any


def read_message(message: ImageMessage, max_pixels: int = MAX_PIXELS, find_other: FindEncoding | None = None) -> Pixels:
    """Reads the image of a message.

    The other arguments and the errors are those of ``read_pixels``.
    """
    return read_pixels(
        message.data,
        height=message.height,
        width=message.width,
        encoding=message.encoding,
        step=message.step,
        is_bigendian=bool(message.is_bigendian),
        max_pixels=max_pixels,
        find_other=find_other,
    )


def unknown_encoding(encoding: str, finding: str = "is not supported") -> ImageError:
    """Returns the error for an encoding that cannot be read. ``finding`` completes the sentence about the encoding."""
    shown = encoding if len(encoding) <= MAX_SHOWN else f"{encoding[:MAX_SHOWN]}..."
    return ImageError(
        DropReason.UNKNOWN_ENCODING, f"Image encoding '{shown}' {finding}; send one of {', '.join(ENCODINGS)}."
    )
