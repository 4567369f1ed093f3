"""Reads the pixels of a ``sensor_msgs/CompressedImage``, JPEG or PNG. The size is checked before decoding."""

from __future__ import annotations

import re
import sys
from typing import Any

import cv2
import numpy as np

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images import decoders
from split_infer_ros.images.containers import JPEG_SIGNATURE, PNG_SIGNATURE, minimal_jpeg, minimal_png
from split_infer_ros.images.encodings import BGR, GREY, RGB, Pixels, read_pixels
from split_infer_ros.images.sizes import MAX_PIXELS

_MOSAIC = re.compile(r"(bayer_[rgb]{4})(?:8|16)")
_STORED = re.compile(r"compressed\s+(\w+)")


def read_compressed(data: Any, format: str, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decodes the image of a compressed image message.

    The first bytes of the data decide between JPEG and PNG. Images of 16 bits become 8 bits, as in ``read_pixels``.
    Transparency is kept but not shown. A rotation in EXIF is not applied, so boxes refer to the stored pixels.

    Args:
        data: any object with the buffer protocol.
        format: the message's format. compressed_image_transport writes ``ORIGINAL; CODEC compressed STORED``, with
            the encodings of the original and of the stored image. ORIGINAL 16UC1 means measurements. STORED rgb8 or
            rgb16 means that red and blue are swapped. If ORIGINAL is bayer_*, an image with one channel is a mosaic,
            unless STORED says that it is grey (mono8).
        max_pixels: a larger image is refused before it is decoded.

    Raises:
        ImageError: ``unknown_format``, ``empty_image``, ``too_large``, ``bad_size`` or ``corrupt_image``.
    """
    encoded = bytes(data)
    if "compresseddepth" in format.lower():
        raise ImageError(
            DropReason.UNKNOWN_FORMAT,
            f"Format '{format}' belongs to compressed_depth_image_transport, which is not supported; send JPEG or PNG, "
            "or the raw image.",
        )
    if not encoded:
        raise ImageError(DropReason.EMPTY_IMAGE, "The compressed image has no data.")
    if encoded.startswith(PNG_SIGNATURE):
        minimal = minimal_png(encoded, max_pixels)
    elif encoded.startswith(JPEG_SIGNATURE):
        minimal = minimal_jpeg(encoded, max_pixels)
    elif not format or re.search("jpe?g|png", format, re.IGNORECASE):
        raise ImageError(
            DropReason.CORRUPT_IMAGE,
            f"A compressed image of format '{format}' begins with neither a JPEG nor a PNG signature.",
        )
    else:
        raise ImageError(
            DropReason.UNKNOWN_FORMAT, f"Compressed images of format '{format}' are not supported; send JPEG or PNG."
        )
    try:
        image = cv2.imdecode(np.frombuffer(minimal, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        image = None
    if image is None:
        raise ImageError(DropReason.CORRUPT_IMAGE, "A compressed image is damaged and cannot be decoded.")
    return _pixels(np.asarray(image), format)


def _pixels(image: np.ndarray, format: str) -> Pixels:
    """Converts a decoded image to pixels.

    Args:
        image: uint8 or uint16 (height, width) or (height, width, 3 or 4), blue first.
        format: the message's format; see ``read_compressed``.
    """
    original, _, stored = format.partition(";")
    samples = image.reshape(*image.shape[:2], -1)
    is_grey = samples.shape[2] == 1
    if is_grey and (pattern := _mosaic(original.strip(), stored)):
        height, width, bits = *image.shape, 8 * image.itemsize
        return read_pixels(
            image.tobytes(),
            height=height,
            width=width,
            encoding=f"{pattern}{bits}",
            step=width * image.itemsize,
            is_bigendian=sys.byteorder == "big",
            max_pixels=height * width,
        )
    if samples.dtype == np.uint16:
        has_measurements = is_grey and original.strip() == "16UC1"
        decode = decoders.stretch_contrast if has_measurements else decoders.scale_full_range
        samples = decode(samples)
    colour_order = RGB if "compressed rgb" in stored else BGR
    return Pixels(samples, GREY if is_grey else colour_order)


def _mosaic(original: str, stored: str) -> str | None:
    """Returns the pattern of a mosaic, such as ``bayer_rggb``; None if the image is grey or colour.

    In PNG, compressed_image_transport stores a mosaic unchanged and leaves STORED out. In JPEG, it makes a mosaic grey
    and writes mono8. With its parameter ``jpeg_compress_bayer``, it keeps the mosaic and writes the pattern again.
    """
    named = _STORED.search(stored)
    found = _MOSAIC.fullmatch(named[1] if named else original)
    return found[1] if found and original.startswith("bayer_") else None
