"""What a declaration says must fit the outputs, and its file of anchors the boxes, before a frame flows."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")

from onnx_files import hollow

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.decode import LayoutDecoder
from split_infer_ros.models.decoders.recognition import OutputReading
from split_infer_ros.models.onnx_models import OnnxFile
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.models.side_file import read_side_file

ANCHORED = "boxes=boxes,scores=scores,encoding=anchors,anchors="
BOXES = 30


def described(folder: Path, decoder: str, **outputs: tuple[Any, ...]) -> OnnxFile:
    shapes = outputs or {"boxes": ("n", BOXES, 4), "scores": ("n", BOXES, 3)}
    return OnnxFile("m.onnx", hollow(shapes), OnnxOptions(decoder=decoder), folder=folder)


def read(folder: Path, decoder: str, **outputs: tuple[Any, ...]) -> OutputReading:
    return described(folder, decoder, **outputs).recognise()


def test_anchors_are_found_beside_the_model(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((BOXES, 4), 0.5))
    file = described(tmp_path, f"{ANCHORED}a.npy")
    reading = file.recognise()
    assert reading.layout.grid.anchors == "a.npy", "what is kept of it holds for a copy in another folder"
    decoder = file.entry(reading).decode
    assert isinstance(decoder, LayoutDecoder)
    assert decoder.layout.grid.anchors == str(tmp_path / "a.npy")


def test_anchors_of_another_number_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.full((BOXES + 1, 4), 0.5))
    with pytest.raises(ConfigurationError, match=r"a\.npy has 31 anchors, and boxes has 30 boxes"):
        read(tmp_path, f"{ANCHORED}a.npy")


def objects(folder: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(folder / "ran"),)

    np.save(folder / "objects.npy", np.array([Harm()], dtype=object), allow_pickle=True)
    (folder / "pickled.npy").write_bytes(pickle.dumps(Harm()))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing.npy", "No such file"),
        ("pipe.json", "a pipe or a device"),
        ("zero.csv", "which is not in its folder"),
        ("loop.npy", "which is not in its folder"),
        ("huge.npy", "more than 67,108,864 bytes"),
        ("objects.npy", "Object arrays cannot be loaded"),
        ("pickled.npy", "magic string"),
        ("deep.json", "recursion"),
        ("large.json", "too large"),
        ("complex.npy", "its elements are complex128"),
        ("~nobody_of_this_name/a.npy", "No such file"),
        ("a" * 5000 + ".npy", "too long"),
        ("a.exe", "its suffix is none of"),
    ],
)
def test_files_of_anchors_that_mean_harm_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    objects(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    (tmp_path / "loop.npy").symlink_to("loop.npy")
    with (tmp_path / "huge.npy").open("wb") as file:
        file.truncate(2**40)
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "large.json").write_text(json.dumps([[10**400] * 4]))
    np.save(tmp_path / "complex.npy", np.ones((BOXES, 4), np.complex128))
    declared = {"boxes": "boxes", "scores": "scores", "encoding": "anchors", "anchors": name}
    (tmp_path / "m.yaml").write_text(json.dumps({"decoder": declared}))
    graph = hollow({"boxes": ("n", BOXES, 4), "scores": ("n", BOXES, 3)})
    with pytest.raises(ConfigurationError, match=reason):
        OnnxFile("m.onnx", graph, OnnxOptions(), read_side_file(tmp_path / "m.onnx"), tmp_path).recognise()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("decoder", "reason"),
    [
        ("boxes=boxes,scores=scores[3:]", r"takes scores\[3:\], which is 0 of 3 numbers; it needs at least 1"),
        ("scores=scores[90:]", r"takes scores\[90:\], which is 0 of 90 numbers"),
        ("boxes=boxes,scores=scores[2:],background=first", "is 1 of 3 numbers; it needs at least 2"),
        ("boxes=boxes,scores=scores,objectness=boxes[7:]", "is 0 of 4 numbers"),
        ("boxes=boxes,scores=scores,peaks=true", "peaks are found in rows maps"),
        ("boxes=boxes,scores=scores,centres=boxes[0:2]", "centres belong to encoding sizes"),
        ("boxes=boxes,scores=scores,encoding=cells,strides=1/1/1", "whose maps have 1228800 cells for 640x640"),
    ],
)
def test_parts_without_the_numbers_they_need_are_refused(tmp_path: Path, decoder: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        read(tmp_path, decoder)


def test_boxes_without_a_batch_may_be_declared(tmp_path: Path) -> None:
    layout = read(tmp_path, "boxes=boxes,scores=scores", boxes=("n", 4), scores=("n",)).layout
    assert layout.boxes is not None
    assert layout.boxes.outputs == ("boxes",)
