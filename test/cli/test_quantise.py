from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest


def test_a_missing_package_is_named(
    run: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "nncf", None)
    for package in ("onnx", "onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, package, sys)
    assert run("quantise", "shapes", "--images", str(tmp_path)) == 1
    assert "quantising needs the Python package nncf" in capsys.readouterr().err


def test_images_are_asked_for(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("quantise", "shapes")
    assert "--images" in capsys.readouterr().err
