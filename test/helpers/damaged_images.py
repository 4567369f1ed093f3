"""Damaged JPEG and PNG images: real images with changed bytes."""

from __future__ import annotations

import io
import random
import struct
import zlib
from functools import cache
from typing import Any

import cv2
import numpy as np
import skimage.data
from PIL import Image

FORMATS = ("jpeg", "png", "", "rgb8; jpeg compressed bgr8", "16UC1; png compressed ", "mono16; png compressed ")


def photograph(height: int = 60, width: int = 80) -> np.ndarray:
    """Returns a photograph, uint8 (height, width, 3) in RGB. It differs from its mirror image."""
    return cv2.resize(skimage.data.astronaut(), (width, height), interpolation=cv2.INTER_AREA)


def encode(image: np.ndarray | Image.Image, kind: str, **options: Any) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, kind, **options)
    return out.getvalue()


def png(image: np.ndarray) -> bytes:
    """Returns an image as PNG data. ``image`` is in BGR, as in compressed_image_transport, with 8 or 16 bits.

    OpenCV writes it, because PIL does not write colours of 16 bits.
    """
    ok, data = cv2.imencode(".png", image)
    assert ok
    return data.tobytes()


@cache
def real_images() -> tuple[bytes, ...]:
    """Returns valid JPEG and PNG images of all common kinds. They are small, so that thousands can be decoded."""
    image = photograph(64, 96)
    pictured = Image.Exif()
    pictured[0x010E] = "a photograph"
    return (
        encode(image, "JPEG"),
        encode(image, "JPEG", progressive=True),
        encode(image, "JPEG", subsampling=0, quality=30, exif=pictured, icc_profile=bytes(500)),
        encode(image, "JPEG", restart_marker_rows=1, comment=b"of a photograph"),
        encode(Image.fromarray(image).convert("L"), "JPEG"),
        encode(Image.fromarray(image).convert("CMYK"), "JPEG"),
        encode(image, "PNG"),
        encode(Image.fromarray(image).convert("LA"), "PNG"),
        encode(Image.fromarray(image).convert("P"), "PNG", transparency=3),
        encode(Image.fromarray(image).convert("1"), "PNG"),
        encode(image, "PNG", save_all=True, append_images=[Image.fromarray(image[::-1])]),  # animated
        png(image.astype(np.uint16) * 257),
        png(np.dstack((image, image[..., 0])).astype(np.uint16) * 257),
    )


def damaged_image(rng: random.Random) -> bytes:
    """Returns the data of a real image with one to four damages.

    Most damages are small, and many are in the first bytes, where the headers are.
    """
    data = bytearray(rng.choice(real_images()))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place = rng.randrange(min(len(data), rng.choice((50, 700, 10**9, 10**9))) or 1)
        length = rng.choice((1, 2, 4, 100))
        damage = rng.randrange(12)
        if damage < 6:
            data[place : place + 1] = bytes((rng.randrange(256),))
        elif damage == 6:
            data[place : place + length] = rng.randbytes(length)
        elif damage == 7:
            data[place : place + length] = rng.choice((b"\0", b"\xff", b"\x7f")) * length
        elif damage == 8:
            del data[place : place + length]
        elif damage == 9:
            data[place:place] = data[rng.randrange(len(data) or 1) :][:length]
        elif damage == 10:
            other = rng.choice(real_images())
            data[place:] = other[rng.randrange(len(other)) :]
        else:
            del data[place:]
    return mended(data) if rng.random() < 0.5 else bytes(data)


def mended(data: bytearray) -> bytes:
    """Returns the data of a damaged PNG image with right checksums, so that decoders read on. JPEG is not changed."""
    place = 8
    while data.startswith(b"\x89PNG") and place + 12 <= len(data):
        end = place + 8 + int.from_bytes(data[place : place + 4], "big")
        if end + 4 <= len(data):
            data[end : end + 4] = struct.pack(">I", zlib.crc32(data[place + 4 : end]))
        place = end + 4
    return bytes(data)
