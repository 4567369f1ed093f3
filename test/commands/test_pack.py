from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from split_infer_ros.layering.packed_file import read_header


def test_a_model_is_packed_and_said_to_be(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "shapes.weights"
    assert run("pack", "shapes", "--out", str(path), "--threads", "1", "--tile-mb", "0.1") == 0
    said = capsys.readouterr().out
    header = read_header(path)
    assert said.startswith(f"{path}: shapes, {header.weight_bytes / 1e6:.1f} MB in ")
    assert f"{len(header.pieces)} pieces" in said
    assert len(header.pieces) > len({piece.layer for piece in header.pieces})


def test_what_cannot_be_packed_is_a_sentence(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("pack", "shaeps", "--out", str(tmp_path / "w")) == 1
    assert "Did you mean 'shapes'" in capsys.readouterr().err
    assert run("pack", "shapes", "--out", "/proc/none/w") == 1
    assert "/proc/none" in capsys.readouterr().err
