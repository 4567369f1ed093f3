"""A model is tried once for each input that recipes of pre-processing give."""

from __future__ import annotations

from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_files import network, ultralytics  # noqa: E402

from split_infer_ros.buffers.host_arrays import Values  # noqa: E402
from split_infer_ros.engines.engine_part import EnginePart  # noqa: E402
from split_infer_ros.models.onnx_models import read_onnx_file  # noqa: E402
from split_infer_ros.models.onnx_options import OnnxOptions  # noqa: E402
from split_infer_ros.split.output_trial import read_outputs  # noqa: E402


def test_recipes_that_give_the_same_input_need_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, calls = tmp_path / "model.onnx", list[EnginePart]()
    onnx.save(network(84, 21, metadata=ultralytics()), path)
    file = read_onnx_file(str(path), OnnxOptions())
    expected = read_outputs(file)  # compares batches, once
    call = EnginePart.__call__

    def note(part: EnginePart, *values: Values) -> tuple[Values, ...]:
        calls.append(part)
        return call(part, *values)

    monkeypatch.setattr(EnginePart, "__call__", note)
    assert read_outputs(file) == expected
    assert len(calls) == 1
    assert expected.recipe != str(file.first_recipe)
