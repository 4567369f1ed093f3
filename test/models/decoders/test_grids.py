from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.grids import cells, count_cells, read_anchors

ANCHORS = [[0.5, 0.5, 0.1, 0.2], [0.25, 0.5, 1.0, 0.5]]


@pytest.mark.parametrize("size", [(64, 96), (33, 17), (1, 1)])
@pytest.mark.parametrize("strides", [(8, 16, 32), (4,), (16, 8)])
def test_cells_follow_each_other_row_by_row(size: tuple[int, int], strides: tuple[int, ...]) -> None:
    height, width = size
    expected = [
        (column, row, stride)
        for stride in strides
        for row in range(-(-height // stride))
        for column in range(-(-width // stride))
    ]
    corners, sides = cells(height, width, strides)
    assert corners.tolist() == [[column, row] for column, row, _ in expected]
    assert sides.ravel().tolist() == [stride for *_, stride in expected]
    assert count_cells(height, width, strides) == len(expected)
    assert corners.dtype == sides.dtype == np.float32


@pytest.mark.parametrize("suffix", [".npy", ".json", ".txt", ".csv", ".NPY"])
def test_anchors_of_any_form_are_the_same(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"anchors{suffix}"
    if suffix.lower() == ".npy":
        with path.open("wb") as file:
            np.save(file, np.array([ANCHORS]))
    elif suffix == ".json":
        path.write_text(json.dumps(ANCHORS))
    else:
        separator = "," if suffix == ".csv" else " "
        path.write_text("\n\n".join(separator.join(map(str, row)) for row in ANCHORS) + "\n")
    assert read_anchors(path).tolist() == np.array(ANCHORS, np.float32).tolist()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.json", "[[1, 2, 3]]", "shape"),
        ("a.json", "[[1, 2, 3, 0]]", "not positive"),
        ("a.json", "[[1, 2, 3, NaN]]", "not finite"),
        ("a.json", "[]", "shape"),
        ("a.json", "[" * 100_000, "recursion"),
        ("a.json", '{"a": 1}', "float"),
        ("a.txt", "1 2 3 4\n1 2 3", "inhomogeneous"),
        ("a.txt", "1 2 3 x", "convert"),
        ("a.txt", "\x00\x01", "convert"),
        ("a.npy", "rubbish", "."),
        ("a.pkl", "1 2 3 4", "suffix"),
    ],
)
def test_a_bad_file_of_anchors_is_refused(tmp_path: Path, name: str, text: str, reason: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(
        ConfigurationError, match=rf"anchors .*{name} cannot be read \(.*; an anchors file holds"
    ) as bad:
        read_anchors(tmp_path / name)
    assert reason in str(bad.value)


def test_anchors_of_pickled_objects_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_anchors(tmp_path / "a.npy")


def test_a_missing_file_of_anchors_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.npy cannot be read"):
        read_anchors(tmp_path / "none.npy")
