"""The file of packed weights.

A page with a magic word, the version, and where the header is; pieces, each on pages of its own; the header, as JSON.
A piece is a layer's parameters and buffers, or some of its rows. No pickle: nothing in a file is run, and every offset
and size is checked before anything is read by it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from split_infer_ros.errors import WeightsError

PAGE = 4096
ALIGN = 64  # of tensors within a piece: a cache line, and the widest vector
MAGIC = b"SPLITWGT"
VERSION = 1
MOST_HEADER = 64 << 20
PLAIN, CHANNELS_LAST = "plain", "channels_last"  # any other layout is the digest of a blocked form
_START = struct.Struct("<8sIQQ32s")  # magic, version, the header's offset, bytes and SHA-256
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool)
}


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Where one tensor lies in its piece.

    Attributes:
        name: in the model's state.
        shape, dtype: of what lies here, which may be some rows.
        offset, nbytes: within the piece.
        layout: ``plain``, ``channels_last`` or the digest of a blocked form.
        input_shape: for which a blocked form was made.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int
    layout: str = PLAIN
    input_shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """A layer, or some of its rows.

    Attributes:
        layer: path of the module, or the tensor's name where no module owns it.
        row: the first of its rows that lie here.
        offset: in the file.
        nbytes: whole pages.
        crc32: of all of them.
    """

    layer: str
    row: int
    offset: int
    nbytes: int
    crc32: int
    tensors: tuple[PackedTensor, ...]


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """All that a file says of itself.

    Attributes:
        model: the name in the catalogue.
        fingerprint: of the model's operations.
        values: digest of the weights as they were before packing.
        machine: for which convolutions were laid out, in words.
        pieces: in the order in which they lie and run.
    """

    model: str
    fingerprint: str
    values: str
    machine: str
    pieces: tuple[Piece, ...]

    @property
    def weight_bytes(self) -> int:
        """Of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)


def pages(nbytes: int) -> int:
    """So many bytes, rounded up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def write_packed(path: Path, head: PackedHeader, contents: Iterable[tuple[Piece, bytes]]) -> PackedHeader:
    """Write a file whole or not at all.

    Args:
        path: where.
        head: what it says of itself but the pieces.
        contents: the pieces, whose offsets, sizes and checksums are not looked at, with their bytes; taken one by one.

    Returns:
        The header as written.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    written, offset = [], pages(_START.size)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            for piece, data in contents:
                padded = data.ljust(pages(len(data)), b"\0")
                written.append(Piece(piece.layer, piece.row, offset, len(padded), zlib.crc32(padded), piece.tensors))
                file.seek(offset)
                file.write(padded)
                offset += len(padded)
            made = PackedHeader(head.model, head.fingerprint, head.values, head.machine, tuple(written))
            text = json.dumps(asdict(made), separators=(",", ":")).encode()
            file.seek(offset)  # behind the pieces: how long it is was not known before
            file.write(text)
            file.seek(0)
            file.write(_START.pack(MAGIC, VERSION, offset, len(text), hashlib.sha256(text).digest()))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return made


def read_header(path: Path) -> PackedHeader:
    """What a file says of itself, checked against its size; the weights are not read.

    Raises:
        WeightsError: there is no such file, it is none of packed weights, or it is damaged.
    """
    try:
        with path.open("rb") as file:
            start = file.read(_START.size)
            offset, length = _START.unpack(start)[2:4] if len(start) == _START.size else (0, 0)
            file.seek(min(offset, 2**62))
            return parse(start, file.read(min(length, MOST_HEADER)), str(path))
    except OSError as error:
        raise WeightsError(f"{path} cannot be read ({error.strerror}); `pack MODEL --out FILE` makes one.") from error


def parse(start: bytes, text: bytes, source: str) -> PackedHeader:
    """The header of a file that begins with ``start`` and has ``text`` where that says.

    Raises:
        WeightsError: it is none, or says what cannot be; ``source`` names the file.
    """
    if len(start) < _START.size or start[: len(MAGIC)] != MAGIC:
        raise WeightsError(f"{source} is no file of packed weights; `pack MODEL --out FILE` makes one.")
    _, version, end, length, digest = _START.unpack_from(start)
    if version != VERSION:
        raise WeightsError(f"{source} is of version {version} and this package reads version {VERSION}: pack it again.")
    if length != len(text) or hashlib.sha256(text).digest() != digest:
        raise WeightsError(f"{source} is cut short or damaged (its header is not as it was written): pack it again.")
    try:
        return _decode(json.loads(text), pages(_START.size), end)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WeightsError(f"{source} is damaged ({error}): pack it again.") from error


def _decode(found: Mapping[str, Any], start: int, limit: int) -> PackedHeader:
    pieces, end = [], start
    for each in found["pieces"]:
        piece = _piece(each)
        if piece.offset < end or piece.offset % PAGE or piece.nbytes % PAGE or not piece.nbytes:
            raise ValueError(f"layer '{piece.layer}' does not lie on pages of its own")
        end = piece.offset + piece.nbytes
        if end > limit:
            raise ValueError(f"layer '{piece.layer}' ends at byte {end:,}, and all weights at {limit:,}")
        pieces.append(piece)
    model, fingerprint, values, machine = (_word(found[key]) for key in ("model", "fingerprint", "values", "machine"))
    return PackedHeader(model, fingerprint, values, machine, tuple(pieces))


def _piece(found: Mapping[str, Any]) -> Piece:
    layer, nbytes = _word(found["layer"]), _number(found["nbytes"])
    tensors = tuple(map(_tensor, found["tensors"]))
    end = 0
    for tensor in tensors:
        if tensor.offset < end or tensor.offset % ALIGN or tensor.offset + tensor.nbytes > nbytes:
            raise ValueError(f"tensor '{tensor.name}' does not lie within layer '{layer}'")
        end = tensor.offset + tensor.nbytes
    return Piece(layer, _number(found["row"]), _number(found["offset"]), nbytes, _number(found["crc32"]), tensors)


def _tensor(found: Mapping[str, Any]) -> PackedTensor:
    name, dtype = _word(found["name"]), _word(found["dtype"])
    shape, input_shape = (tuple(map(_number, found[key])) for key in ("shape", "input_shape"))
    tensor = PackedTensor(
        *(name, shape, dtype, _number(found["offset"]), _number(found["nbytes"]), _word(found["layout"])), input_shape
    )
    if dtype not in DTYPES:
        raise ValueError(f"tensor '{name}' is of type '{dtype}'")
    values = math.prod(shape) * DTYPES[dtype].itemsize
    if tensor.layout in (PLAIN, CHANNELS_LAST):
        if tensor.nbytes != values or (tensor.layout == CHANNELS_LAST and len(shape) != 4):
            raise ValueError(f"tensor '{name}' of shape {shape} does not take {tensor.nbytes:,} bytes")
    elif len(shape) != 4 or len(input_shape) != 4 or dtype != "float32" or tensor.nbytes < values:
        raise ValueError(f"tensor '{name}' of shape {shape} is no convolution's")
    return tensor


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r:.40} is no size")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no name")
    return value
