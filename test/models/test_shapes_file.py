"""``shapes`` where torch is not imported: its ONNX file takes the place of the network."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

onnx = pytest.importorskip("onnx")

from blocked_torch import PACKAGE  # noqa: E402

from split_infer_ros.models.shapes_file import DEFAULT_SPLIT_POINT, FILE, LABELS, NAME, as_shapes, is_shapes_file  # noqa: E402

pytestmark = pytest.mark.numeric

CHILD_S = 100  # a bound on the process that a test starts
RUN = """
import sys

sys.modules["torch"] = None  # so nothing finds it

from split_infer_ros import LocalPipeline, ModelSpec, load_model
from split_infer_ros.autotuning.opening import open_model
from split_infer_ros.engines.engine import Engine
from split_infer_ros.measurements.database import Database
from split_infer_ros.sources import draw_scene
from split_infer_ros.weight_streaming.settings import WeightsSettings

spec, settings, database = ModelSpec("shapes", device="cpu"), WeightsSettings(), Database(sys.argv[2])
opened = open_model(spec, settings, database, engine=sys.argv[1], precision="fp32")
model = opened.model
assert not opened.notes, opened.notes
print(model.entry.name, model.split_point("default").name, model.execution_config.engine.value)
images = (draw_scene(seed=seed, index=0).image for seed in (1, 2))
with LocalPipeline(model) as pipeline:
    for result in pipeline.run(images):
        print(result.index, sorted({model.entry.labels[label] for label in result.detections.labels}))
print(load_model(spec) is load_model(ModelSpec("shapes", device="cpu", on_torch=False)))
"""


@pytest.mark.timeout(2 * CHILD_S)
@pytest.mark.parametrize(
    ("wanted", "used"), [("auto", "onnxruntime"), ("onnxruntime", "onnxruntime"), ("openvino", "openvino")]
)
def test_it_finds_shapes_where_torch_is_not_installed(wanted: str, used: str, tmp_path: Path) -> None:
    pytest.importorskip(used)
    found = subprocess.run(
        [sys.executable, "-c", RUN, wanted, f"{tmp_path}/tuning.jsonl"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    lines = [f"shapes neck {used}", "0 ['circle', 'square']", "1 ['square', 'triangle']", "True"]
    assert found.stdout.splitlines() == lines, found.stderr


@pytest.mark.timeout(2 * CHILD_S)
def test_commands_take_it_where_torch_is_not_installed(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['torch'] = None\n")
    found = subprocess.run(
        [sys.executable, "-m", "split_infer_ros", "split_points", NAME],
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}:{PACKAGE.parent}",
            "XDG_CACHE_HOME": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=CHILD_S,
        check=False,
    )
    assert found.stdout.startswith(f"{NAME}: finds circles, squares and triangles; "), found.stderr
    assert f"* {DEFAULT_SPLIT_POINT}  " in found.stdout


def test_the_file_is_known_by_its_path() -> None:
    assert is_shapes_file(str(FILE))
    assert not is_shapes_file(FILE.name)
    assert FILE.is_file()


def test_its_entry_is_that_of_the_network() -> None:
    pytest.importorskip("torch")
    from split_infer_ros.models.catalogue import find_model
    from split_infer_ros.models.shapes_file import OPTIONS

    entry, network = as_shapes(find_model(str(FILE), onnx_options=OPTIONS)), find_model(NAME)
    for field in ("name", "summary", "preprocess", "labels", "default_split_point"):
        assert getattr(entry, field) == getattr(network, field)
    assert entry.labels == LABELS
