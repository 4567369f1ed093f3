"""Modules that handle arrays alone import no torch, which costs a process seconds and most of a gigabyte."""

from __future__ import annotations

import subprocess
import sys

import pytest
from blocked_torch import BLOCK_TORCH, PACKAGE

CHILD_S = 60  # a bound on the process that a test starts
PACKAGES = ("images", "measurements", "onnx", "point_clouds", "runtime", "sources", "telemetry")
MODULES = (
    *("models.catalogue", "models.drawing", "models.evaluation", "models.plausibility", "models.weights_source"),
    *("split.controller", "split.sandbox.early_inspector", "split.sandbox.inspected_model", "split.sandbox.inspector"),
    "split.sandbox.inspection_imports",
    *("split.sandbox.inspector_process", "split.load", "split.model_engines"),
    *("split.profile_samples", "split.quantised_file", "split.result_agreement", "split.sample_images"),
    *("split.stage_timer", "split.verdict"),
    *("autotuning.opening", "autotuning.trials", "autotuning.tune", "memory_cost.machine"),
    *("memory_cost.memory_choice", "operator_placement.placed_backbone", "quantisation.quantise"),
    *(
        "vision_ops.box_nms",
        "vision_ops.schedules",
        "weight_streaming.weightless_loading",
        "weight_streaming.ring_memory",
    ),
    *("weight_streaming.streamed_partition", "weight_streaming.streaming"),
    *("models.fitting", "models.host_pixels", "models.letterbox", "models.preprocess", "models.recipe"),
    *("buffers.cuda", "buffers.file_locks", "buffers.graph_input", "buffers.host_arrays", "buffers.layout"),
    *("buffers.managed_bytes", "buffers.memory", "buffers.memory_allocation", "buffers.memory_pool"),
    *("buffers.native_library", "buffers.policy", "buffers.pool", "buffers.pool_allocators"),
    *("buffers.segment", "buffers.shared_pool"),
    *("buffers.shared_reader", "buffers.slot_memory", "buffers.slot_table", "buffers.slots"),
    *("engines.result_difference", "engines.compute", "engines.executable", "engines.execution_config"),
    *("engines.onnxruntime_part", "engines.openvino_part", "preprocessing.preprocessor"),
)

PREPARE_BATCH = """
from split_infer_ros.images.encodings import read_pixels
from split_infer_ros.models.recipe import Recipe

pixels = read_pixels(bytes(range(256)) * 9, height=24, width=32, encoding="bgr8", step=96)
preprocess = Recipe.parse("RECIPE").preprocess(16, 16)
batch = preprocess.normalise(preprocess.gather([pixels], preprocess.staging(1)), channels_last=False)
print(batch.shape, batch.dtype, batch.std() > 0.1)
"""

RUN_ON_A_CPU = """
from split_infer_ros.measurements.key import Key
from split_infer_ros.runtime.captures import empty_cache, is_recording, synchronize_device
from split_infer_ros.runtime.device import CPU
from split_infer_ros.runtime.process import prepare_process
from split_infer_ros.runtime.streams import Stream, work_apart
from split_infer_ros.runtime.timing import Stopwatch

prepare_process()
stream = Stream(CPU)
with stream.work("sum"), work_apart(CPU, "nothing"):
    seconds = Stopwatch(CPU).time(lambda: sum(range(1000)))
stream.wait_for(stream.fence())
stream.fence().wait()
synchronize_device(CPU)
empty_cache()
print(seconds > 0, is_recording(CPU), Key.here("cpu").target["device"])
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCK_TORCH + program],
        env={"PYTHONPATH": str(PACKAGE.parent), "_ROS_WHEELS_BOOTSTRAP_COMPLETE": "1"},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )


@pytest.mark.timeout(2 * CHILD_S)
def test_images_and_their_sources_are_imported_without_torch() -> None:
    names = [f"{package}.{path.stem}" for package in PACKAGES for path in sorted((PACKAGE / package).glob("*.py"))]
    assert len(names) > 10
    imports = "".join(f"importlib.import_module('split_infer_ros.{name}')\n" for name in (*names, *MODULES))
    found = run(imports.replace(".__init__", ""))
    assert found.returncode == 0, found.stderr


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.parametrize("recipe", ["letterbox", "stretch,unrounded,-1..1"])
def test_a_batch_is_prepared_without_torch(recipe: str) -> None:
    found = run(PREPARE_BATCH.replace("RECIPE", recipe))
    assert found.stdout == "(1, 3, 16, 16) float32 True\n", found.stderr


@pytest.mark.timeout(2 * CHILD_S)
def test_work_runs_on_a_cpu_without_torch() -> None:
    found = run(RUN_ON_A_CPU)
    assert found.stdout == "True False cpu\n", found.stderr


@pytest.mark.timeout(2 * CHILD_S)
def test_the_block_holds() -> None:
    assert "torch is blocked" in run("import torch\n").stderr
