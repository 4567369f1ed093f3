"""The header of a file of packed weights. It says which weights lie where.

A piece of the file holds a layer's parameters and buffers, or some of their rows. ``decode_header`` checks every offset
and size before anything is read with them, because the file may be damaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from split_infer_ros.buffers.host_arrays import BFLOAT16, dtype_named
from split_infer_ros.runtime.cache import cache_folder

PAGE = 4096
MAX_DIMENSIONS = 8
ALIGN = 64  # bytes; tensors in a piece begin at multiples of it: a cache line, and the widest vector
PLAIN, CHANNELS_LAST = "plain", "channels_last"  # any other layout is the digest of a blocked layout
DTYPES = ("float32", "float16", BFLOAT16, "int64", "int32", "uint8", "bool")


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """The place of one tensor in its piece.

    Attributes:
        name: the tensor's name in the model's state.
        shape: shape of the stored values, which may be some rows of the tensor.
        dtype: the name of the stored values' dtype, one of ``DTYPES``.
        offset: offset in the piece, in bytes.
        nbytes: size in the piece, in bytes.
        layout: ``plain``, ``channels_last`` or the digest of a blocked layout, which is one of oneDNN's own layouts.
        input_shape: the shape of the layer's input, (N, C, H, W), for which a blocked layout was made; else empty.
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
    """The stored weights of a layer, or of some of its rows.

    Attributes:
        layer: path of the module, or the tensor's name if no module owns it.
        row: the index of the first row of the weights that the piece holds. 0 if it holds whole weights.
        offset: offset in the file, in bytes.
        nbytes: size in bytes, a multiple of ``PAGE``.
        crc32: CRC-32 of all bytes of the piece.
        tensors: the piece's tensors, in the order in which they lie.
    """

    layer: str
    row: int
    offset: int
    nbytes: int
    crc32: int
    tensors: tuple[PackedTensor, ...]


@dataclass(frozen=True, slots=True)
class PackedHeader:
    """The description of a file's contents.

    Attributes:
        model: the model's name in the catalogue.
        fingerprint: fingerprint of the model's operations.
        values: digest of the weights as they were before packing.
        machine: the machine for which convolutions were laid out, in words.
        pieces: the pieces, in the order in which they lie in the file and layers run.
        source: text that says where the weights come from; see ``weights_source``. Empty if only ``values`` identifies
            the weights.
    """

    model: str
    fingerprint: str
    values: str
    machine: str
    pieces: tuple[Piece, ...]
    source: str = ""

    @property
    def weight_bytes(self) -> int:
        """The size of all pieces in bytes."""
        return sum(piece.nbytes for piece in self.pieces)


def packed_folder() -> Path:
    """Returns the cache's folder of packed files."""
    return cache_folder() / "weights"


def round_up_to_pages(nbytes: int) -> int:
    """Rounds bytes up to whole pages."""
    return -(-nbytes // PAGE) * PAGE


def decode_header(fields: Mapping[str, Any], start: int, limit: int) -> PackedHeader:
    """Decodes a header and checks all of its offsets and sizes.

    Args:
        fields: the header, decoded from JSON.
        start: offset in the file at which the first piece may begin.
        limit: offset in the file by which the last piece must end.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the header describes an impossible file.
    """
    pieces, end = [], start
    for each in fields["pieces"]:
        piece = _decode_piece(each)
        if piece.offset < end or piece.offset % PAGE or piece.nbytes % PAGE or not piece.nbytes:
            raise ValueError(f"layer '{piece.layer}' does not lie on pages of its own")
        end = piece.offset + piece.nbytes
        if end > limit:
            raise ValueError(f"layer '{piece.layer}' ends at byte {end:,}, and all weights at {limit:,}")
        pieces.append(piece)
    return PackedHeader(
        **{name: _text(fields[name]) for name in ("model", "fingerprint", "values", "machine")},
        pieces=tuple(pieces),
        source=_text(fields.get("source", "")),  # files of earlier versions have none
    )


def _decode_piece(fields: Mapping[str, Any]) -> Piece:
    piece = Piece(
        layer=_text(fields["layer"]),
        **{name: _size(fields[name]) for name in ("row", "offset", "nbytes", "crc32")},
        tensors=tuple(map(_decode_tensor, fields["tensors"])),
    )
    end = 0
    for tensor in piece.tensors:
        if tensor.offset < end or tensor.offset % ALIGN or tensor.offset + tensor.nbytes > piece.nbytes:
            raise ValueError(f"tensor '{tensor.name}' does not lie within layer '{piece.layer}'")
        end = tensor.offset + tensor.nbytes
    if piece.nbytes > round_up_to_pages(max(end, 1)):  # memory is allocated for the whole piece
        raise ValueError(f"layer '{piece.layer}' takes {piece.nbytes:,} bytes, and its tensors {end:,}")
    return piece


def _decode_tensor(fields: Mapping[str, Any]) -> PackedTensor:
    tensor = PackedTensor(
        name=_text(fields["name"]),
        shape=tuple(map(_size, fields["shape"])),
        dtype=_text(fields["dtype"]),
        offset=_size(fields["offset"]),
        nbytes=_size(fields["nbytes"]),
        layout=_text(fields["layout"]),
        input_shape=tuple(map(_size, fields["input_shape"])),
    )
    if max(len(tensor.shape), len(tensor.input_shape)) > MAX_DIMENSIONS:
        raise ValueError(f"tensor '{tensor.name}' has {len(tensor.shape)} dimensions")
    if tensor.dtype not in DTYPES:
        raise ValueError(f"tensor '{tensor.name}' is of type '{tensor.dtype}'")
    values_bytes = math.prod(tensor.shape) * dtype_named(tensor.dtype).itemsize
    is_4d = len(tensor.shape) == 4
    if tensor.layout in (PLAIN, CHANNELS_LAST):
        if tensor.nbytes != values_bytes or (tensor.layout == CHANNELS_LAST and not is_4d):
            raise ValueError(f"tensor '{tensor.name}' of shape {tensor.shape} does not take {tensor.nbytes:,} bytes")
    elif not is_4d or len(tensor.input_shape) != 4 or tensor.dtype != "float32" or tensor.nbytes < values_bytes:
        raise ValueError(f"tensor '{tensor.name}' of shape {tensor.shape} is no convolution's")
    return tensor


def _size(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**53:
        raise ValueError(f"{value!r:.40} is no size")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is no name")
    return value
