"""A model that was loaded before is known without its file, which is read when somebody needs its nodes."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

from onnx_files import network, ultralytics  # noqa: E402
from partitions import partitions_of  # noqa: E402

from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart  # noqa: E402
from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.models.detections import Limits  # noqa: E402
from split_infer_ros.onnx.file import read_onnx  # noqa: E402
from split_infer_ros.split import onnx_reading  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.manifest import Manifest  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402
from split_infer_ros.split.onnx_network import OnnxNetwork  # noqa: E402

pytestmark = pytest.mark.numeric

IMAGES = np.random.default_rng(0).random((2, 3, 32, 32), np.float32)
NAMES = {"imgsz": "[32, 32]", "names": "['a', 'b']"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A detector whose weights lie in a file beside it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "m.onnx"
    proto = network(6, 84, metadata=ultralytics(**NAMES))
    onnx.save_model(proto, str(path), save_as_external_data=True, location="m.data", size_threshold=100)
    return path


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Gets the name of each file that is read."""
    found: list[str] = []
    read = onnx_reading.read_onnx_file
    monkeypatch.setattr(
        onnx_reading, "read_onnx_file", lambda name, options: (found.append(name), read(name, options))[1]
    )
    return found


def loaded(path: Path, engine: str = "onnxruntime") -> SplitModel:
    """The model as a process has it that has not loaded it before."""
    gc.collect()
    return load_model(ModelSpec(str(path), device="cpu", execution_config=ExecutionConfig(engine=Engine(engine))))


def facts(model: SplitModel) -> list[object]:
    """All that a node asks of a model before frames come."""
    network, names = model.network, [point.name for point in model.split_points]
    counts = [(network.num_parameters(name), len(model.kernels_before(name))) for name in names]
    known = (network.fingerprint, network.content, network.num_parameters(), network.note, network.takes_batches)
    entry = model.entry
    described = (entry.name, entry.summary, entry.labels, entry.notes, entry.preprocess, network.default_split_point)
    return [model.split_points, counts, known, described]


def results(model: SplitModel, split_point: str = "default") -> list[np.ndarray]:
    """The detections for two images, as arrays."""
    parts = partitions_of(model, split_point)
    outputs = parts.head(*parts.backbone(IMAGES))
    found = model.entry.detections_of(outputs, Limits(score_threshold=0.0))
    return [array for each in found for array in (each.boxes, each.scores, each.labels)]


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_later_load_reads_no_file(file: Path, readings: list[str], engine: str) -> None:
    pytest.importorskip(engine)
    first = loaded(file, engine)
    before = facts(first), results(first)
    assert readings == [str(file)]
    del first
    later = loaded(file, engine)
    assert facts(later) == before[0]
    found = results(later)
    assert len(readings) == 1
    assert all(np.array_equal(one, other) for one, other in zip(found, before[1], strict=True)), "bit for bit"


def test_another_split_point_reads_the_file(file: Path, readings: list[str]) -> None:
    first = loaded(file)
    before = results(first, "output")
    del first
    later = loaded(file)
    found = results(later, "input")
    assert len(readings) == 2
    assert all(np.allclose(one, other, atol=1e-5) for one, other in zip(found, before, strict=True))


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("name", ["m.onnx", "m.data"])
def test_a_file_that_changed_meanwhile_is_not_read(file: Path, readings: list[str], name: str, engine: str) -> None:
    pytest.importorskip(engine)
    first = loaded(file, engine)
    results(first, "output")
    del first
    later = loaded(file, engine)
    changed = file.with_name(name)
    changed.write_bytes(changed.read_bytes()[:-1] + b"\1")
    results(later, "output")
    assert len(partitions_of(later, "output").backbone(np.repeat(IMAGES, 3, axis=0))[0]) == 6, (
        "compiled for more images"
    )
    with pytest.raises(ConfigurationError, match="has changed since it was loaded; load the model again"):
        results(later, "input")
    assert len(readings) == 1


def test_a_file_that_was_only_touched_is_read(file: Path, readings: list[str]) -> None:
    first = loaded(file)
    results(first, "output")
    del first
    later = loaded(file)
    file.write_bytes(file.read_bytes())
    file.with_suffix(".yaml").write_text("labels: [c, d]\n")
    results(later, "input")
    assert len(readings) == 2


def test_a_model_that_nobody_uses_is_freed_at_once(file: Path) -> None:
    for _ in range(2):  # read from the file, and known
        model = loaded(file)
        gc.disable()
        try:
            results(model, "output")
            reference = weakref.ref(model)
            del model
            assert reference() is None
        finally:
            gc.enable()


def test_a_comparison_that_failed_is_made_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, graph, run = loaded(file).entry, read_onnx(file), OnnxRuntimePart.__call__
    monkeypatch.setenv("XDG_CACHE_HOME", str(file.parent / "empty"))

    def fail(part: OnnxRuntimePart, *values: np.ndarray) -> object:
        if len(values[0]) > 1:
            raise MemoryError
        return run(part, *values)

    with monkeypatch.context() as patch:
        patch.setattr(OnnxRuntimePart, "__call__", fail)
        assert not OnnxNetwork(entry, graph, manifest=Manifest.of("0123", str(file))).takes_batches
    assert OnnxNetwork(entry, graph, manifest=Manifest.of("0123", str(file))).takes_batches


def test_a_copy_of_a_file_has_its_own_name(file: Path) -> None:
    first = loaded(file)
    copy = file.with_name("copy.onnx")
    copy.write_bytes(file.read_bytes())
    second = loaded(copy)
    assert (first.entry.summary.split(",")[0], second.entry.summary.split(",")[0]) == ("m.onnx", "copy.onnx")
    assert first.network.content == second.network.content
