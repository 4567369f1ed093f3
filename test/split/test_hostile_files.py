"""Damaged model files of every format and kind: each is served or refused with a sentence, and no process is lost.

This takes a few files of each kind. ``scripts/fuzz_files.py`` takes 2,000 of each format.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fuzz_files import FORMATS, failures, kind_of, page
from hostile_files import formats
from hostile_worker import fuzz

WHOLE = -1


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What became of a whole file and of one file of each kind, of all formats, in one process."""
    folder = tmp_path_factory.mktemp("files")
    known = formats(folder)
    assert list(known) == list(FORMATS)
    files = [(name, number) for name, each in known.items() for number in range(WHOLE, len(each.damages))]
    return list(fuzz(files, folder))


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_damage_is_survived(found: list[dict[str, Any]], name: str) -> None:
    of_format = [each for each in found if each["format"] == name]
    assert failures(of_format) == []
    assert len({each["kind"] for each in of_format}) == len(of_format) > 5
    assert "sentence" in {each["outcome"] for each in of_format}


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_are_served(found: list[dict[str, Any]], name: str) -> None:
    """What is damaged was good before, or else every refusal would be vacuous."""
    (whole,) = [each for each in found if (each["format"], each["number"]) == (name, WHOLE)]
    assert whole["outcome"] == "served", whole["sentence"]


def test_the_page_counts_what_was_found() -> None:
    told = {"format": "ONNX", "sentence": "", "inspection": {}, "ran": False, "peak_bytes": 10**9}
    found = [
        {**told, "number": 0, "kind": "cut", "outcome": "served"},
        {**told, "number": 1, "kind": "cut", "outcome": "sentence", "sentence": "/model.onnx has 12 bytes (why)."},
        {**told, "number": 2, "kind": "types", "outcome": "sentence", "inspection": {"died": "SIGSEGV"}},
        {**told, "number": 3, "kind": "types", "outcome": "death (SIGSEGV)"},
        {**told, "number": 4, "kind": "types", "outcome": "served", "ran": True},
    ]
    made = page(found)
    assert "| **ONNX** | 5 | 2 | 2 | 1 | 0 | 1 | 0 |" in made
    assert "| cut | 2 | 1 | 1 | 0 | 0 | 0 | 0 |" in made
    assert "1,000 MB in the process" in made
    assert [each["number"] for each in failures(found)] == [3, 4]
    assert kind_of("/model.onnx takes 'w' from bytes 1 to -2,000: two files.").startswith(
        "FILE takes '…' from bytes N to N"
    )
