"""Writes files of packed weights and reads their headers.

The first page of a file holds a magic word, the version and the place of the header. Pieces follow, each on pages of
its own. The header comes last, as JSON. The format has no pickle: nothing in a file is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
import zlib
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from split_infer_ros.errors import WeightsError
from split_infer_ros.runtime.user_files import open_regular
from split_infer_ros.weight_streaming.packed_header import PackedHeader, Piece, decode_header, round_up_to_pages

MAGIC = b"SPLITWGT"
VERSION = 1
MAX_HEADER_BYTES = 8 << 20  # a tensor's entry takes about 200 bytes
_START = struct.Struct("<8sIQQ32s")  # magic, version, the header's offset, bytes and SHA-256


def write_packed(path: Path, header: PackedHeader, contents: Iterable[tuple[Piece, bytes]]) -> PackedHeader:
    """Writes a file of packed weights. If that fails, ``path`` is as it was before.

    Args:
        path: the file to write. Its folder is made if it is missing.
        header: the header without pieces.
        contents: each piece with its bytes. The function takes the next piece when it has written the one before. It
            sets the piece's offset, size and checksum itself.

    Returns:
        The header as written, with its pieces.

    Raises:
        OSError: the file cannot be written.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    pieces, offset = [], round_up_to_pages(_START.size)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            for piece, data in contents:
                padded = data.ljust(round_up_to_pages(len(data)), b"\0")
                pieces.append(replace(piece, offset=offset, nbytes=len(padded), crc32=zlib.crc32(padded)))
                file.seek(offset)
                file.write(padded)
                offset += len(padded)
            written = replace(header, pieces=tuple(pieces))
            text = json.dumps(asdict(written), separators=(",", ":")).encode()
            file.seek(offset)  # after the pieces: the header's length was not known before
            file.write(text)
            file.seek(0)
            file.write(_START.pack(MAGIC, VERSION, offset, len(text), hashlib.sha256(text).digest()))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return written


def read_header(path: Path) -> PackedHeader:
    """Reads a file's header and checks it against the file's size. Weights are not read.

    Raises:
        WeightsError: the file does not exist, does not hold packed weights, or is damaged.
    """
    try:
        with open(path, "rb", opener=open_regular) as file:
            start = file.read(_START.size)
            offset, length = _START.unpack(start)[2:4] if len(start) == _START.size else (0, 0)
            file.seek(min(offset, 2**62))
            return parse_header(start, file.read(min(length, MAX_HEADER_BYTES)), str(path))
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}); `pack MODEL --out FILE` creates one.") from error


def parse_header(start: bytes, text: bytes, source: str) -> PackedHeader:
    """Decodes and checks a header.

    Args:
        start: the first bytes of the file.
        text: the header's bytes. ``start`` names their place in the file.
        source: the file's name, for messages.

    Raises:
        WeightsError: the bytes are not a header, or describe an impossible file.
    """
    if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
        raise WeightsError(f"{source} is not a file of packed weights; `pack MODEL --out FILE` creates one.")
    _, version, end, length, digest = _START.unpack_from(start)
    if version != VERSION:
        raise WeightsError(
            f"{source} is of version {version}, and this package reads version {VERSION}: pack it again."
        )
    if length != len(text) or hashlib.sha256(text).digest() != digest:
        raise WeightsError(
            f"{source} is truncated or damaged (its header differs from what was written): pack it again."
        )
    try:
        return decode_header(json.loads(text), round_up_to_pages(_START.size), end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{source} is damaged ({error}): pack it again.") from error
