"""Prepares JPEG and PNG files for decoding. Checks their size, and keeps only the parts that the pixels need.

Decoders trust the lengths that a file claims, and files can lie. OpenCV 5 takes seconds and gigabytes for a PNG chunk
that claims 4 GB. OpenCV 4.12 ends the process on some broken animations. So this module walks through the parts of a
file and drops the parts that do not affect its pixels: EXIF, previews, texts, colour profiles and animation.
"""

from __future__ import annotations

import re
import struct

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images.sizes import check_size

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
JPEG_SIGNATURE = b"\xff\xd8\xff"

MAX_SEGMENTS = 1000  # the most segments of a JPEG image before its pixels
MAX_SCANS = 64  # the most scans of a JPEG image; ten are usual, and a few bytes of scan can cost a pass over all pixels

_PNG_HEADER = b"\x00\x00\x00\rIHDR"  # the length and name of the first chunk
_PNG_HEADER_SIZE = 25
_PNG_NEEDED_CHUNKS = frozenset({b"PLTE", b"tRNS", b"IDAT", b"IEND"})

_JPEG_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_START_OF_SCAN = b"\xff\xda"
_END_OF_IMAGE = b"\xff\xd9"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL_MARKERS = frozenset({0xC0, 0xC1})
_MARKERS_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD8)})
_COMMENT_MARKERS = frozenset({0xFE, *range(0xE1, 0xF0)}) - {
    0xEE
}  # without APP0 (JFIF) and APP14 (Adobe), because these name the colours


def minimal_png(encoded: bytes, max_pixels: int) -> bytes:
    """Returns a PNG file with only the chunks that its pixels need.

    Args:
        encoded: the file, which begins with PNG_SIGNATURE.
        max_pixels: the most pixels; a larger image is refused.

    Raises:
        ImageError: ``empty_image``, ``too_large`` or ``corrupt_image``.
    """
    offset, end = len(PNG_SIGNATURE) + _PNG_HEADER_SIZE, len(encoded)
    if end < offset or not encoded.startswith(_PNG_HEADER, len(PNG_SIGNATURE)):
        raise _corrupt("PNG image is damaged or ends in its header")
    width, height = struct.unpack_from(">II", encoded, len(PNG_SIGNATURE) + len(_PNG_HEADER))
    check_size(height, width, max_pixels)
    parts, kind = [encoded[:offset]], b""
    while kind != b"IEND":
        if offset + 12 > end:
            raise _corrupt("PNG image ends before its end")
        length, kind = struct.unpack_from(">I4s", encoded, offset)
        start, offset = offset, offset + 12 + length
        if offset > end:
            raise _corrupt("PNG image is damaged or ends before its end")
        if kind in _PNG_NEEDED_CHUNKS:
            parts.append(encoded[start:offset])
    return b"".join(parts)


def minimal_jpeg(encoded: bytes, max_pixels: int) -> bytes:
    """Returns a JPEG file with only the segments that its pixels need.

    Args:
        encoded: the file, which begins with JPEG_SIGNATURE.
        max_pixels: the most pixels; a larger image is refused.

    Raises:
        ImageError: ``empty_image``, ``too_large`` (which includes too many scans) or ``corrupt_image``.
    """
    offset = 2
    frame_kind, frame_header = 0, b""  # the marker and content of the segment that states the size
    parts = [encoded[:offset]]
    for _ in range(MAX_SEGMENTS):
        marker = _JPEG_MARKER.match(encoded, offset)
        if marker is None:
            break
        kind, start = marker[1][0], marker.end()
        if kind in _MARKERS_WITHOUT_LENGTH:
            offset = start
            continue
        length = int.from_bytes(encoded[start : start + 2], "big")
        content = encoded[start + 2 : start + length]
        if length < 2 or len(content) != length - 2:
            break
        if kind in _FRAME_MARKERS and len(content) > 5:
            frame_kind, frame_header = kind, content
            height, width = struct.unpack_from(">HH", content, 1)
            check_size(height, width, max_pixels)
        if kind == _START_OF_SCAN[1] and frame_kind and content:
            if encoded.rfind(_END_OF_IMAGE) < start:
                raise _corrupt("JPEG image ends before its end")
            # If the first scan of a sequential image has all colours, decoders ignore further scans.
            if frame_kind not in _SEQUENTIAL_MARKERS or content[0] != frame_header[5]:
                _check_scans(1 + encoded.count(_START_OF_SCAN, start))
            parts.append(encoded[offset:])
            return b"".join(parts)
        if kind not in _COMMENT_MARKERS:
            parts.append(encoded[offset : start + length])
        offset = start + length
    raise _corrupt("JPEG image is damaged or ends in its header")


def _check_scans(scans: int) -> None:
    if scans > MAX_SCANS:
        raise ImageError(DropReason.TOO_LARGE, f"A JPEG image has {scans:,} scans; at most {MAX_SCANS} are allowed.")


def _corrupt(finding: str) -> ImageError:
    return ImageError(DropReason.CORRUPT_IMAGE, f"A compressed {finding}.")
