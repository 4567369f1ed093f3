"""Pixels of a ``sensor_msgs/CompressedImage``: JPEG and PNG, whose size is known before anything is decoded."""

from __future__ import annotations

import re
from typing import Any

import cv2
import numpy as np
import torch

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images import decoders
from split_infer_ros.images.containers import JPEG_SIGNATURE, PNG_SIGNATURE, essence_of_jpeg, essence_of_png
from split_infer_ros.images.encodings import BGR, GREY, MAX_PIXELS, RGB, Pixels


def read_compressed(data: Any, format: str, max_pixels: int = MAX_PIXELS) -> Pixels:
    """Decodes the image of a compressed image message.

    What the data begins with decides between JPEG and PNG. Images of 16 bits become 8 bits as ``read_pixels`` says,
    transparency is kept but not shown, and the turns that a camera noted in EXIF are left alone: boxes are in the
    pixels that are stored.

    Args:
        data: any object with the buffer protocol.
        format: the message's; of what compressed_image_transport writes, ``ORIGINAL; CODEC compressed STORED``,
            ORIGINAL 16UC1 stands for measurements, and STORED rgb8 or rgb16 for red and blue stored as each other.
        max_pixels: a larger image is refused before it is decoded.

    Raises:
        ImageError: ``unknown_format``, ``empty_image``, ``too_large`` or ``corrupt_image``.
    """
    encoded = bytes(data)
    if "compresseddepth" in format.lower():
        raise ImageError(
            DropReason.UNKNOWN_FORMAT,
            f"Format '{format}' is that of compressed_depth_image_transport, which is not read; send JPEG or PNG, or "
            "the raw image.",
        )
    if not encoded:
        raise ImageError(DropReason.EMPTY_IMAGE, "The compressed image has no data.")
    if encoded.startswith(PNG_SIGNATURE):
        essence = essence_of_png(encoded, max_pixels)
    elif encoded.startswith(JPEG_SIGNATURE):
        essence = essence_of_jpeg(encoded, max_pixels)
    elif not format or re.search("jpe?g|png", format, re.IGNORECASE):
        raise ImageError(
            DropReason.CORRUPT_IMAGE, f"A compressed image of format '{format}' begins like neither JPEG nor PNG."
        )
    else:
        raise ImageError(
            DropReason.UNKNOWN_FORMAT, f"Compressed images of format '{format}' are not read; send JPEG or PNG."
        )
    try:
        image = cv2.imdecode(np.frombuffer(essence, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error:
        image = None
    if image is None:
        raise ImageError(DropReason.CORRUPT_IMAGE, "A compressed image is damaged and cannot be decoded.")
    return _pixels(np.asarray(image), format)


def _pixels(image: np.ndarray, format: str) -> Pixels:
    """A decoded image, (height, width) or (height, width, 3 or 4), blue first, of 8 or 16 bits."""
    original, _, stored = format.partition(";")
    samples = image.reshape(*image.shape[:2], -1)
    is_grey = samples.shape[2] == 1
    if samples.dtype == np.uint16:
        measured = is_grey and original.strip() == "16UC1"
        samples = decoders.stretched(samples) if measured else decoders.full_range(samples)
    return Pixels(torch.from_numpy(samples), GREY if is_grey else RGB if "compressed rgb" in stored else BGR)
