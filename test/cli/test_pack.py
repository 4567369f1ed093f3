from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from split_infer_ros.weight_streaming.pack import packing_target
from split_infer_ros.weight_streaming.packed_file import read_header
from split_infer_ros.weight_streaming.packed_header import CHANNELS_LAST, PLAIN


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


def test_file_for_a_gpu_fits_any_gpu_and_needs_none_here(run: Callable[..., int], tmp_path: Path) -> None:
    path = tmp_path / "shapes.weights"
    assert run("pack", "shapes", "--out", str(path), "--device", "cuda:1") == 0
    header = read_header(path)
    assert header.machine == packing_target(None)
    layouts = {tensor.layout for piece in header.pieces for tensor in piece.tensors}
    assert layouts <= {PLAIN, CHANNELS_LAST}


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--threads", ["0", "-2", "1.5"]),
        ("--batch-size", ["0", "-1", "many"]),
        ("--tile-mb", ["0", "-5", "nan", "inf"]),
        ("--device", ["gpu", "meta"]),
    ],
)
def test_options_that_cannot_be_are_refused(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path, option: str, values: list[str]
) -> None:
    for value in values:
        with pytest.raises(SystemExit):
            run("pack", "shapes", "--out", str(tmp_path / "w"), f"{option}={value}")
        assert f"argument {option}: {value} is no" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
