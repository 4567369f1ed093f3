"""Damaged model files of every format and kind: each is served or refused with a sentence, and no process is lost.

This takes a few files of each kind. ``scripts/fuzz_files.py`` takes thousands of each format.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fuzz_files import FORMATS, failures, kind_of, section, with_section
from hostile_decoders import decoder_models
from hostile_files import formats
from hostile_worker import fuzz

from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.sandbox.inspected_model import inspect_model

WHOLE = -1


class Tried:
    """What became of a whole file and of one file of each kind, of all formats, in one process.

    Each test tries the files that it needs and that were not tried yet.
    """

    def __init__(self, folder: Path) -> None:
        known = formats(folder)
        assert list(known) == list(FORMATS)
        files = [(name, number) for name, each in known.items() for number in range(WHOLE, len(each.damages))]
        self.left, self.names = fuzz(files, folder), [name for name, _ in files]
        self.found: list[dict[str, Any]] = []

    def of(self, name: str) -> list[dict[str, Any]]:
        """The results of a format's files."""
        last = len(self.names) - self.names[::-1].index(name)
        self.found += islice(self.left, max(0, last - len(self.found)))
        return [each for each in self.found if each["format"] == name]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    return Tried(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("name", FORMATS)
def test_every_kind_of_damage_is_survived(tried: Tried, name: str) -> None:
    of_format = tried.of(name)
    assert failures(of_format) == []
    assert len({each["kind"] for each in of_format}) == len(of_format) > 5
    assert "sentence" in {each["outcome"] for each in of_format}


@pytest.mark.parametrize("name", FORMATS)
def test_whole_files_are_served(tried: Tried, name: str) -> None:
    """What is damaged was good before, or else every refusal would be vacuous."""
    (whole,) = [each for each in tried.of(name) if each["number"] == WHOLE]
    assert whole["outcome"] == "served", whole["sentence"]


def test_models_of_every_decoder_are_good_before_the_damage(tmp_path: Path) -> None:
    found = []
    for number, data in enumerate(decoder_models()):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(data)
        found.append(inspect_model(ModelSpec(str(path), device="cpu"))["layout"]["name"])
    kinds = ["boxes_scores", "dets", "counted", "nanodet", "yolov7", "centernet", "classifier", "classifier"]
    other_inputs = ["boxes_scores"] * 4
    fixed_batch = ["boxes_scores", "classifier"]
    assert found == kinds + other_inputs + fixed_batch


def test_the_page_counts_what_was_found() -> None:
    told = {"format": "ONNX", "sentence": "", "inspection": {}, "ran": False, "peak_bytes": 10**9}
    found = [
        {**told, "number": 0, "kind": "cut", "outcome": "served"},
        {**told, "number": 1, "kind": "cut", "outcome": "sentence", "sentence": "/model.onnx has 12 bytes (why)."},
        {**told, "number": 2, "kind": "types", "outcome": "sentence", "inspection": {"died": "SIGSEGV"}},
        {**told, "number": 3, "kind": "types", "outcome": "death (SIGSEGV)"},
        {**told, "number": 4, "kind": "types", "outcome": "served", "ran": True},
    ]
    made = section("Hostile model files", found)
    assert "| **ONNX** | 5 | 2 | 2 | 1 | 0 | 1 | 0 |" in made
    assert "| cut | 2 | 1 | 1 | 0 | 0 | 0 | 0 |" in made
    assert "1,000 MB in the process" in made
    page = "# Notes\n\n## Hostile model files\n\nold\n\n## Another\n\nkept\n"
    assert with_section(page, "Hostile model files", found) == f"# Notes\n\n{made}\n## Another\n\nkept\n"
    assert [each["number"] for each in failures(found)] == [3, 4]
    assert kind_of("/model.onnx takes 'w' from bytes 1 to -2,000: two files.").startswith(
        "FILE takes '…' from bytes N to N"
    )
