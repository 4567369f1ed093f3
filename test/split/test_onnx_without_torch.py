"""What a process does with an ONNX file on a CPU, from the file to detections, needs no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

from blocked_torch import BLOCK_TORCH, PACKAGE  # noqa: E402
from onnx_files import network, ultralytics  # noqa: E402

CHILD_S = 100  # a bound on the process that a test starts


def run_program(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program, with its arguments, on the package under test and with more variables of the environment."""
    return subprocess.run(
        [sys.executable, "-c", *arguments],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), **variables},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )


RUN_EVERY_SPLIT_POINT = """
import numpy as np

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.models.detections import Limits
from split_infer_ros.split.sandbox.inspected_model import inspect_model
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.split_points import as_specified

config = ExecutionConfig(engine=Engine(sys.argv[2]))
spec = ModelSpec(sys.argv[1], device=sys.argv[3], execution_config=config)
inspect_model(spec)
model = load_model(spec)
images = model.blank_images(3)
for point in model.split_points:
    features = model.backbone(point.name)(images)
    outputs = model.head(point.name)(*as_specified(features, point.head_inputs))
    found = model.entry.detections_of(outputs, Limits(score_threshold=0.0))
    assert all(isinstance(each, np.ndarray) for each in (*features, *outputs))
backbones, heads = model.segments()
print(model.device, len(found), len(backbones) == len(heads) == len(model.split_points) - 1)
"""


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.parametrize(("engine", "device"), [("onnxruntime", "auto"), ("openvino", "cpu")])
def test_an_onnx_file_is_inspected_split_run_and_decoded(engine: str, device: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip(engine)
    if device == "auto" and "CUDAExecutionProvider" in runtime.get_available_providers():
        pytest.skip("torch says whether there is a GPU")
    path = tmp_path / "boxes.onnx"
    onnx.save(network(21, 84, metadata=ultralytics(imgsz="[32, 32]"), transposed=True), path)
    program = BLOCK_TORCH + RUN_EVERY_SPLIT_POINT
    found = run_program(program, str(path), engine, device, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert found.stdout == "cpu 3 True\n", found.stderr


REFUSED = """
import sys

from split_infer_ros import ConfigurationError, ModelSpec, load_model

for device in ("cpu", "auto"):
    try:
        load_model(ModelSpec("shapes", sys.argv[1], device))
    except ConfigurationError as error:
        print(error)
"""
ADVICE = 'pip install "torch>=2.6,!=2.13.0" torchvision, or take engine onnxruntime and weights default.'


@pytest.mark.timeout(2 * CHILD_S)
def test_a_model_of_torch_is_refused_where_torch_is_not_installed() -> None:
    found = run_program("import sys\nsys.modules['torch'] = None\n" + REFUSED, "none")
    sentence = f"model shapes needs the Python package torch, which is not installed: {ADVICE}\n"
    assert found.stdout == 2 * sentence, found.stderr


@pytest.mark.timeout(2 * CHILD_S)
def test_streamed_weights_are_refused_where_torch_is_not_installed() -> None:
    program = """
import sys

sys.modules["torch"] = None
from split_infer_ros import ConfigurationError, ModelSpec
from split_infer_ros.weight_streaming.weightless_loading import load_streamable
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings

try:
    load_streamable(ModelSpec("shapes", device="cpu"), WeightsSettings(weights_residency=Residency.TWO_STAGE))
except ConfigurationError as error:
    print(error)
"""
    found = run_program(program)
    sentence = "model shapes with streamed weights needs the Python package torch, which is not installed: "
    assert found.stdout.startswith(sentence), found.stderr
    assert found.stdout.endswith(", or take weights_residency resident.\n")


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.parametrize("error", ["ImportError", "OSError"])
def test_a_torch_that_cannot_be_loaded_is_named(error: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(f"raise {error}('libcudart.so.12: no such file')\n")
    path = tmp_path / "boxes.onnx"
    onnx.save(network(21, 84, metadata=ultralytics(imgsz="[32, 32]"), transposed=True), path)
    runs = f"print(load_model(ModelSpec({str(path)!r})).device)\n"
    path_of_modules = f"{tmp_path}:{PACKAGE.parent}"
    found = run_program(REFUSED + runs, "default", PYTHONPATH=path_of_modules, XDG_CACHE_HOME=str(tmp_path / "cache"))
    sentence = (
        "model shapes needs the Python package torch, which cannot be loaded (libcudart.so.12: no such file): "
        f"{ADVICE}\n"
    )
    assert found.stdout == 2 * sentence + "cpu\n", found.stderr


@pytest.mark.timeout(2 * CHILD_S)
def test_torch_is_not_imported_to_find_no_gpu() -> None:
    """A process asks for the device before it knows which models it gets."""
    pytest.importorskip("torch")
    program = """
import sys
from pathlib import Path
from split_infer_ros.split import torch_needs
from split_infer_ros.split.load import choose_device

torch_needs.DEVICES = (Path("/no/such/device"),)
print(choose_device("auto"), "torch" in sys.modules)
torch_needs.DEVICES = (Path("/dev"),)
choose_device("auto")
print("torch" in sys.modules)
"""
    found = run_program(program)
    assert found.stdout == "cpu False\nTrue\n", found.stderr
