"""A ``LocalPipeline`` of an ONNX file imports nothing heavy until its first detection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")

from light_starts import HEAVY, write_detector

import split_infer_ros

CHILD_S = 100  # a bound on the process that a test starts; the test's own bound lies above it
PROGRAM = """
import sys
import numpy as np
from split_infer_ros import LocalPipeline, ModelSpec, load_model
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig

path, engine, *heavy = sys.argv[1:]
model = load_model(ModelSpec(path, device="cpu", execution_config=ExecutionConfig(engine=Engine(engine))))
with LocalPipeline(model) as pipeline:
    print(len(list(pipeline.run([np.zeros((48, 64, 3), np.uint8)]))), [name for name in heavy if name in sys.modules])
"""


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_nothing_heavy_is_imported_until_the_first_detection(engine: str, tmp_path: Path) -> None:
    pytest.importorskip(engine)
    model = tmp_path / "mine.onnx"
    write_detector(model)
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, model, engine, *HEAVY],
        env={**os.environ, "PYTHONPATH": str(Path(split_infer_ros.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout == "1 []\n"
