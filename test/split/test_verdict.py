"""Results of an ONNX model are compared once for a file, a size of images and an engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

numpy_helper = pytest.importorskip("onnx.numpy_helper")
pytest.importorskip("onnxruntime")

from onnx_nets import IMAGE_SHAPE, assert_near, images, mixing, run_each, sized  # noqa: E402
from small_graphs import ROUNDING, SIDE, in_torch, small_graph  # noqa: E402
from small_graphs import images as small_images  # noqa: E402

from split_infer_ros.buffers.host_arrays import Floats  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart  # noqa: E402
from split_infer_ros.models.classifier import classify  # noqa: E402
from split_infer_ros.models.entry import ModelEntry  # noqa: E402
from split_infer_ros.models.preprocess import Preprocess  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.prepared_graph import PreparedGraph  # noqa: E402
from split_infer_ros.runtime.checked_files import header_of  # noqa: E402
from split_infer_ros.split import onnx_to_torch, verdict  # noqa: E402
from split_infer_ros.split.onnx_batches import prepare_batches  # noqa: E402
from split_infer_ros.split.sample_images import sample_images  # noqa: E402
from split_infer_ros.split.verdict import Verdict  # noqa: E402

CONFIG = ExecutionConfig(engine=Engine.ONNXRUNTIME)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "split_infer_ros" / "onnx"


class Loads:
    """Prepares graphs and counts what was made executable."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, graph: OnnxGraph) -> PreparedGraph:
        return prepare_batches(graph, IMAGE_SHAPE, self.make, Verdict.on_batches(graph, IMAGE_SHAPE, CONFIG))

    def make(self, graph: OnnxGraph) -> OnnxRuntimePart:
        self.made += 1
        return OnnxRuntimePart(graph)


@pytest.mark.parametrize(("make", "takes_batches"), [(sized, True), (mixing, False)])
def test_a_graph_is_compared_once(make: Callable[[], OnnxGraph], takes_batches: bool, folder: Path) -> None:
    load = Loads()
    for _ in range(3):
        prepared = load(make())
        assert load.made == 2, "one part for single images, one for several"
        assert (prepared.note == "") == (prepared.graph.inputs[0].shape[0] is None) == takes_batches
    (file,) = folder.iterdir()
    assert file.suffix == ".batches"
    if takes_batches:
        assert_near(OnnxRuntimePart(prepared.whole())(images(3)), run_each(make(), images(3)))


@pytest.mark.parametrize("content", [b"", b"perhaps", header_of(b'"perhaps"') + b'"perhaps"'])
def test_a_damaged_verdict_counts_for_nothing(content: bytes, folder: Path) -> None:
    load = Loads()
    load(sized())
    (file,) = folder.iterdir()
    file.write_bytes(content)
    assert load(sized()).note == ""
    assert load.made == 4
    load(sized())
    assert load.made == 4


def test_a_graph_that_takes_no_several_images_is_compared_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, run = Loads(), OnnxRuntimePart.__call__

    def fail(part: OnnxRuntimePart, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if len(tensors[0]) > 1:
            raise RuntimeError("The input tensor cannot be reshaped to the requested shape.")
        return run(part, *tensors)

    monkeypatch.setattr(OnnxRuntimePart, "__call__", fail)
    assert "one by one" in load(sized()).note
    made = load.made
    assert "one by one" in load(sized()).note
    assert load.made == made


def test_a_failure_on_several_images_is_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load, run = Loads(), OnnxRuntimePart.__call__

    def fail(part: OnnxRuntimePart, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if len(tensors[0]) > 1:
            raise MemoryError
        return run(part, *tensors)

    with monkeypatch.context() as patch:
        patch.setattr(OnnxRuntimePart, "__call__", fail)
        assert "one by one" in load(sized()).note
    assert load(sized()).note == ""


def test_a_folder_that_cannot_be_written_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.parent.mkdir()
    folder.write_text("no folder")
    assert Loads()(sized()).note == ""
    assert any("so the model is compared again at each start" in message for message in caplog.messages)


def test_weights_sizes_engines_and_versions_have_verdicts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, other = sized(), sized()
    assert Verdict.on_batches(graph, IMAGE_SHAPE, CONFIG) == Verdict.on_batches(sized(), IMAGE_SHAPE, CONFIG)
    filters = next(tensor for tensor in other.proto.graph.initializer if len(tensor.dims) == 4)
    filters.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(filters), filters.name))
    found = {
        Verdict.on_batches(graph, IMAGE_SHAPE, CONFIG),
        Verdict.on_batches(other, IMAGE_SHAPE, CONFIG),
        Verdict.on_batches(graph, (3, 8, 8), CONFIG),
        Verdict.on_batches(graph, IMAGE_SHAPE, ExecutionConfig(engine=Engine.OPENVINO)),
    }
    monkeypatch.setattr(verdict, "engine_version", lambda engine: "1.0")
    found.add(Verdict.on_batches(graph, IMAGE_SHAPE, CONFIG))
    assert len(found) == 5


def test_a_model_on_torch_is_compared_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged verdict counts for nothing."""
    pytest.importorskip("onnx2torch")
    compared: list[str] = []

    def note(entry: ModelEntry) -> Floats:
        compared.append(entry.name)
        return sample_images(entry)

    monkeypatch.setattr(onnx_to_torch, "sample_images", note)
    entry = ModelEntry(
        name="small",
        summary="",
        build=small_graph,
        weights=None,
        preprocess=Preprocess(SIDE, SIDE),
        labels=("a", "b"),
        default_split_point=None,
        decode=classify(SIDE, SIDE),
    )
    for _ in range(3):
        _, module = onnx_to_torch.to_torch(entry, small_graph())
    assert compared == ["small"]
    assert sorted(file.suffix for file in folder.iterdir()) == [".batches", ".torch"]
    tensors = small_images(2)
    with torch.inference_mode():
        for found, expected in zip(module(tensors), in_torch(tensors), strict=True):
            assert (found - expected).abs().max() <= ROUNDING * expected.abs().max()
    next(folder.glob("*.torch")).write_bytes(b"perhaps")
    onnx_to_torch.to_torch(entry, small_graph())
    assert len(compared) == 2


def test_another_processor_or_library_has_a_verdict_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's kernels depend on the processor."""
    pytest.importorskip("onnx2torch")
    found = {Verdict.on_torch(small_graph(), IMAGE_SHAPE, CONFIG) for _ in range(2)}
    monkeypatch.setattr(verdict, "instruction_set", lambda: "of another processor")
    found.add(Verdict.on_torch(small_graph(), IMAGE_SHAPE, CONFIG))
    monkeypatch.setattr(verdict, "version", lambda package: "0.1")
    found.add(Verdict.on_torch(small_graph(), IMAGE_SHAPE, CONFIG))
    assert len(found) == 3
