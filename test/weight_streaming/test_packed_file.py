"""The file of packed weights: what is written is read back, and a header's claims are checked."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hostile_weights import START
from hypothesis import given, settings
from hypothesis import strategies as st

from split_infer_ros.errors import WeightsError
from split_infer_ros.weight_streaming.packed_file import MAGIC, VERSION, parse_header, read_header, write_packed
from split_infer_ros.weight_streaming.packed_header import PAGE, PackedHeader, PackedTensor, Piece

HEADER = PackedHeader("m", "f", "v", "here", ())
TENSOR = PackedTensor("a.weight", (2, 3), "float32", 0, 24)


def write(path: Path) -> PackedHeader:
    larger = replace(TENSOR, shape=(PAGE + 1,), dtype="uint8", nbytes=PAGE + 1)
    pieces = [Piece("a", 0, 0, 0, 0, (TENSOR,)), Piece("b", 0, 0, 0, 0, (larger,))]
    return write_packed(path, HEADER, [(pieces[0], b"x" * 24), (pieces[1], b"y" * (PAGE + 1))])


def start_of(text: bytes, end: int = 3 * PAGE, version: int = VERSION) -> bytes:
    return START.pack(MAGIC, version, end, len(text), hashlib.sha256(text).digest())


def parse(header: dict[str, Any], end: int = 4 * PAGE) -> PackedHeader:
    text = json.dumps(header).encode()
    return parse_header(start_of(text, end), text, "file")


def test_written_pieces_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "w"
    written = write(path)
    assert read_header(path) == written
    first, second = written.pieces
    assert (first.offset, first.nbytes, second.offset, second.nbytes) == (PAGE, PAGE, 2 * PAGE, 2 * PAGE)
    assert path.read_bytes()[PAGE : PAGE + 25] == b"x" * 24 + b"\0"
    assert written.weight_bytes == 3 * PAGE
    assert [file.name for file in path.parent.iterdir()] == ["w"]


def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    def contents() -> Any:
        yield Piece("a", 0, 0, 0, 0, (TENSOR,)), b"x" * 24
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_packed(tmp_path / "w", HEADER, contents())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [0, 10, PAGE, 4 * PAGE, -1])
def test_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "w"
    write(path)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(WeightsError, match=r"truncated|is not a file of packed"):
        read_header(path)


def test_missing_file_and_other_versions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="No such file"):
        read_header(tmp_path / "none")
    with pytest.raises(WeightsError, match="version 7"):
        parse_header(start_of(b"{}", version=7), b"{}", "file")


PIECE = asdict(Piece("a", 0, PAGE, PAGE, 0, (TENSOR,)))
GOOD = {**asdict(HEADER), "pieces": [PIECE]}


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 0},
        {"offset": PAGE + 1},
        {"offset": 4 * PAGE},
        {"nbytes": 2**52},
        {"nbytes": 0},
        {"nbytes": -PAGE},
        {"nbytes": True},
        {"layer": 3},
        {"tensors": [{**asdict(TENSOR), "offset": PAGE}]},
        {"tensors": [{**asdict(TENSOR), "offset": 8}]},
        {"tensors": [{**asdict(TENSOR), "nbytes": 23}]},
        {"tensors": [{**asdict(TENSOR), "shape": [2**30, 2**30]}]},
        {"tensors": [{**asdict(TENSOR), "dtype": "object"}]},
        {"tensors": [{**asdict(TENSOR), "layout": "abc"}]},
        {"tensors": [asdict(TENSOR), asdict(TENSOR)]},
    ],
)
def test_impossible_offsets_and_sizes_are_refused(change: dict[str, Any]) -> None:
    assert parse(GOOD).pieces[0].layer == "a"
    with pytest.raises(WeightsError, match="damaged"):
        parse({**GOOD, "pieces": [{**PIECE, **change}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*PIECE, *asdict(TENSOR)]), JSON, st.booleans())
@settings(max_examples=60)
def test_header_with_any_value_is_sound_or_refused(key: str, value: Any, in_tensor: bool) -> None:
    piece = {**PIECE, "tensors": [{**asdict(TENSOR), key: value}]} if in_tensor else {**PIECE, key: value}
    try:
        found = parse({**GOOD, "pieces": [piece]})
    except WeightsError:
        return
    (piece_found,) = found.pieces
    assert piece_found.offset >= PAGE
    assert piece_found.offset + piece_found.nbytes <= 4 * PAGE
    assert all(tensor.offset + tensor.nbytes <= piece_found.nbytes for tensor in piece_found.tensors)


@given(st.binary(max_size=200), st.binary(max_size=100))
@settings(max_examples=100)
def test_random_bytes_are_refused(start: bytes, text: bytes) -> None:
    for data in (start, MAGIC + start, start_of(text)):
        with pytest.raises(WeightsError):
            parse_header(data, text, "file")
