"""JPEG and PNG files as far as they are read before decoding: their size, and what of them a decoder may see.

Decoders trust what a file says of itself, and files lie: OpenCV 5 takes seconds and gigabytes for a PNG chunk that
claims 4 GB, and OpenCV 4.12 ends the process at some broken animations. So the parts of a file are walked through here,
and those that say nothing of the pixels (EXIF, previews, texts, colour profiles, animation) go no further.
"""

from __future__ import annotations

import re
import struct

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images.encodings import check_size

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG_SIGNATURE = b"\xff\xd8\xff"

MOST_SEGMENTS = 1000  # of a JPEG image before its pixels
MOST_SCANS = 64  # of a JPEG image; each may cost a pass over all its pixels for a few bytes, and ten are usual

_PNG_HEADER = b"\x00\x00\x00\rIHDR"  # size and name of the chunk, which is the first
_PNG_HEADER_SIZE = 25
_PNG_ESSENCE = frozenset({b"PLTE", b"tRNS", b"IDAT", b"IEND"})

_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_START_OF_SCAN = b"\xff\xda"
_END_OF_IMAGE = b"\xff\xd9"
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL = frozenset({0xC0, 0xC1})
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
_COMMENTS = frozenset({0xFE, *range(0xE1, 0xF0)}) - {0xEE}  # APP0 (JFIF) and APP14 (Adobe) say which colours they are


def essence_of_png(encoded: bytes, max_pixels: int) -> bytes:
    """A PNG file without the chunks that its pixels do not need.

    Args:
        encoded: begins with PNG_SIGNATURE.
        max_pixels: a larger image is refused.

    Raises:
        ImageError: ``empty_image``, ``too_large`` or ``corrupt_image``.
    """
    place, end = len(PNG_SIGNATURE) + _PNG_HEADER_SIZE, len(encoded)
    if end < place or not encoded.startswith(_PNG_HEADER, len(PNG_SIGNATURE)):
        raise _corrupt("PNG image is damaged or ends in its header")
    width, height = struct.unpack_from(">II", encoded, len(PNG_SIGNATURE) + len(_PNG_HEADER))
    check_size(height, width, max_pixels)
    parts, kind = [encoded[:place]], b""
    while kind != b"IEND":
        if place + 12 > end:
            raise _corrupt("PNG image ends before its end")
        length, kind = struct.unpack_from(">I4s", encoded, place)
        start, place = place, place + 12 + length
        if place > end:
            raise _corrupt("PNG image is damaged or ends before its end")
        if kind in _PNG_ESSENCE:
            parts.append(encoded[start:place])
    return b"".join(parts)


def essence_of_jpeg(encoded: bytes, max_pixels: int) -> bytes:
    """A JPEG file without the segments before its pixels that these do not need.

    Args:
        encoded: begins with JPEG_SIGNATURE.
        max_pixels: a larger image is refused.

    Raises:
        ImageError: ``empty_image``, ``too_large`` (also of too many scans) or ``corrupt_image``.
    """
    place, frame = 2, (0, b"")  # the marker and content of the segment that tells the size
    parts = [encoded[:place]]
    for _ in range(MOST_SEGMENTS):
        marker = _JPEG_MARKER.match(encoded, place)
        if marker is None:
            break
        kind, start = marker[1][0], marker.end()
        if kind in _WITHOUT_LENGTH:
            place = start
            continue
        length = int.from_bytes(encoded[start : start + 2], "big")
        content = encoded[start + 2 : start + length]
        if length < 2 or len(content) != length - 2:
            break
        if kind in _FRAMES and len(content) > 5:
            frame = kind, content
            height, width = struct.unpack_from(">HH", content, 1)
            check_size(height, width, max_pixels)
        if kind == _START_OF_SCAN[1] and frame[0] and content:
            if encoded.rfind(_END_OF_IMAGE) < start:
                raise _corrupt("JPEG image ends before its end")
            # of a sequential image with all its colours in the first scan, decoders take no other
            if frame[0] not in _SEQUENTIAL or content[0] != frame[1][5]:
                _check_scans(1 + encoded.count(_START_OF_SCAN, start))
            return b"".join((*parts, encoded[place:]))
        if kind not in _COMMENTS:
            parts.append(encoded[place : start + length])
        place = start + length
    raise _corrupt("JPEG image is damaged or ends in its header")


def _check_scans(scans: int) -> None:
    if scans > MOST_SCANS:
        raise ImageError(
            DropReason.TOO_LARGE, f"A JPEG image has {scans:,} scans; the most that are read is {MOST_SCANS}."
        )


def _corrupt(what: str) -> ImageError:
    return ImageError(DropReason.CORRUPT_IMAGE, f"A compressed {what}.")
