"""Damaged and hostile files of safetensors and of packed weights."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import zlib
from typing import Any

from hostile_bytes import ODD_VALUES, flipped, with_odd_value

from split_infer_ros.models.shapes import WEIGHTS
from split_infer_ros.weight_streaming import packed_file

START = struct.Struct("<8sIQQ32s")  # magic, version, the header's offset, bytes and SHA-256


def whole_safetensors() -> bytes:
    return WEIGHTS.read_bytes()


def safetensors_of(header: bytes, values: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + values


def split_safetensors(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), data[end:]


def odd_header(rng: random.Random, data: bytes) -> bytes:
    """Returns safetensors with odd values, names, types and offsets in the header."""
    header, values = split_safetensors(data)
    return safetensors_of(json.dumps(with_odd_value(rng, header)).encode(), values)


def other_shapes(rng: random.Random, data: bytes) -> bytes:
    """Returns safetensors with a tensor of another shape or type, or with all tensors in the same place."""
    header, values = split_safetensors(data)
    name = rng.choice([name for name in header if name != "__metadata__"])
    tensor = header[name]
    pick = rng.randrange(5)
    if pick == 0:
        tensor["shape"] = [length for length in tensor["shape"] if length != 1] + [1] * rng.choice((1, 2, 60))
    elif pick == 1:
        tensor["dtype"] = rng.choice(("I32", "F8_E4M3", "F8_E5M2", "U32", "F64", "BOOL", "C64", "F4", "I64"))
    elif pick == 2:
        tensor["shape"] = [0, *tensor["shape"]]
        tensor["data_offsets"] = [0, 0]
    elif pick == 3:
        tensor["dtype"], tensor["shape"] = "U8", [tensor["data_offsets"][1] - tensor["data_offsets"][0]]
    else:  # all places of all tensors are those of one
        for each in header.values():
            if "data_offsets" in each:
                each["data_offsets"] = tensor["data_offsets"]
    return safetensors_of(json.dumps(header).encode(), values)


def odd_length(rng: random.Random, data: bytes) -> bytes:
    """Returns safetensors with a header of another length, nested very deeply, or with each name twice."""
    pick = rng.randrange(5)
    if pick == 0:
        return rng.choice((2**63, 2**64 - 1, 10**8, 10**8 + 1, len(data), 0, 1)).to_bytes(8, "little") + data[8:]
    header, values = split_safetensors(data)
    text = json.dumps(header).encode()
    if pick == 1:
        text = rng.choice((b"[" * 10**6, b'{"a":' * 10**5, b'"' * 1000, b"\xff" * 100))
    elif pick == 2:
        text = text[:-1] + b"," + text[1:]
    elif pick == 3:
        huge = 2 ** rng.choice((31, 40, 62))
        header["huge"] = {"dtype": "F32", "shape": [huge // 4], "data_offsets": [len(values), len(values) + huge]}
        text = json.dumps(header).encode()
    else:
        text += b" " * rng.choice((1, 7, 10**6))
    return safetensors_of(text, values)


def header_of(data: bytes) -> tuple[dict[str, Any], int]:
    """Returns the header of a packed file, and its offset in the file."""
    _, _, offset, length, _ = START.unpack_from(data)
    return json.loads(data[offset : offset + length]), offset


def packed_of(data: bytes, header: Any, offset: int) -> bytes:
    """Returns a packed file with another header. The file's start holds the right digest of this header."""
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    start = START.pack(packed_file.MAGIC, packed_file.VERSION, offset, len(text), hashlib.sha256(text).digest())
    return start + data[len(start) : offset] + text


def odd_packed_header(rng: random.Random, data: bytes) -> bytes:
    """Returns a packed file with odd values in its header."""
    header, offset = header_of(data)
    if rng.random() < 0.05:
        return packed_of(data, rng.choice(("[" * 10**6, '{"a":' * 10**5, "9" * 10**5, '"' * 100)), offset)
    part = rng.choice((header, header["pieces"], header["pieces"]))
    with_odd_value(rng, part)
    return packed_of(data, header, offset)


def other_tensors(rng: random.Random, data: bytes) -> bytes:
    """Returns a packed file with tensors of other shapes, layouts, input shapes or places, according to its header."""
    header, offset = header_of(data)
    for _ in range(rng.choice((1, 1, 3))):
        piece = rng.choice(header["pieces"])
        tensor = rng.choice(piece["tensors"] or [{}])
        pick = rng.randrange(6)
        if pick == 0 and tensor.get("input_shape"):
            tensor["input_shape"][rng.randrange(4)] = rng.choice((0, 1, 2**16, 2**31, 2**40, 2**53 - 1))
        elif pick == 1:
            tensor["layout"] = rng.choice(("plain", "channels_last", "0" * 12))
        elif pick == 2:
            piece["nbytes"] += 4096 * rng.choice((1, -1, 2**20, 2**35))
        elif pick == 3:
            header["pieces"].append(piece)
        elif pick == 4:
            piece["offset"] = rng.choice(header["pieces"])["offset"]
        else:
            tensor["shape"] = rng.choice(([1], [2**30] * 4, [1] * 3000, tensor.get("shape", [])[::-1]))
    return packed_of(data, header, offset)


def odd_start(rng: random.Random, data: bytes) -> bytes:
    """Returns a packed file whose first bytes name another version, or another place or length of the header."""
    fields = list(START.unpack_from(data))
    place = rng.choice((1, 2, 2, 3, 3))
    fields[place] = rng.choice([value for value in ODD_VALUES if type(value) is int and 0 <= value < 2**32])
    if place > 1:
        fields[place] = rng.choice((fields[place], 2**63, 2**64 - 1, len(data)))
    return START.pack(*fields) + data[START.size :]


def other_values(rng: random.Random, data: bytes) -> bytes:
    """Returns a packed file with other values in one piece. In half of the cases, the checksum is right."""
    header, offset = header_of(data)
    piece = rng.choice(header["pieces"])
    start, end = piece["offset"], piece["offset"] + piece["nbytes"]
    content = rng.choice((flipped, lambda rng, data: rng.randbytes(len(data))))(rng, data[start:end])
    if rng.random() < 0.5:
        piece["crc32"] = zlib.crc32(content)
    return packed_of(data[:start] + content + data[end:], header, offset)
