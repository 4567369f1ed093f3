"""ONNX models as models of torch: split where the ONNX model is split, with its results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx2torch")

from dtype_nets import half_inside  # noqa: E402
from onnx import helper  # noqa: E402
from onnx_files import network, ultralytics  # noqa: E402
from onnx_nets import (  # noqa: E402
    IMAGE_SHAPE,
    assert_near,
    attention,
    chunks,
    exported,
    filters,
    images,
    mixing,
    net,
    reused,
    run_each,
)
from photographs import photographs  # noqa: E402
from small_graphs import graph_of  # noqa: E402

from split_infer_ros.buffers.host_arrays import FLOAT16, dtype_of  # noqa: E402
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig  # noqa: E402
from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.models.classifier import classify  # noqa: E402
from split_infer_ros.models.detections import Limits  # noqa: E402
from split_infer_ros.models.entry import ModelEntry  # noqa: E402
from split_infer_ros.models.preprocess import Preprocess  # noqa: E402
from split_infer_ros.onnx.file import read_onnx  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.server.local import LocalPipeline  # noqa: E402
from split_infer_ros.server.settings import DropPolicy, StageSettings  # noqa: E402
from split_infer_ros.split.load import load_model  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.model_spec import ModelSpec  # noqa: E402
from split_infer_ros.split.onnx_network import OnnxNetwork  # noqa: E402
from split_infer_ros.split.onnx_to_torch import to_torch  # noqa: E402
from split_infer_ros.split.torch_network import TorchNetwork  # noqa: E402
from split_infer_ros.weight_streaming.residency import Residency  # noqa: E402

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")


def entry_of(graph: OnnxGraph) -> ModelEntry:
    _, height, width = IMAGE_SHAPE
    return ModelEntry(
        name=graph.name,
        summary="",
        build=lambda: graph,
        weights=None,
        preprocess=Preprocess(height, width),
        labels=(),
        default_split_point=None,
        decode=classify(height, width),
    )


def converted(graph: OnnxGraph, config: ExecutionConfig | None = None) -> SplitModel:
    entry, module = to_torch(entry_of(graph), graph)
    return SplitModel(TorchNetwork(entry, module, folding=config is None or config.folding), CPU, config)


def static_net() -> OnnxGraph:
    return exported(net(), by_dynamo=False, is_symbolic=False)


def symbolic_net() -> OnnxGraph:
    return exported(net(), by_dynamo=False, is_symbolic=True)


@pytest.mark.parametrize("make", [static_net, symbolic_net, chunks, attention, reused])
def test_every_split_point_is_the_onnx_models_and_gives_its_results(make: Callable[[], OnnxGraph]) -> None:
    graph = make()
    original, model = SplitModel(OnnxNetwork(entry_of(graph), graph)), converted(graph)
    assert [point.name for point in model.split_points] == [point.name for point in original.split_points]
    assert [point.aliases for point in model.split_points] == [point.aliases for point in original.split_points]
    assert model.split_point("default").name == original.split_point("default").name
    with torch.inference_mode():
        expected = run_each(graph, images(3))
        for point in model.split_points:
            assert point.tensors == original.split_point(point.name).tensors
            features = model.backbone(point.name)(images(3))
            assert_near(model.head(point.name)(*features), expected)
            assert_near(original.head(point.name)(*(each.contiguous() for each in features)), expected)


@pytest.mark.parametrize("make", [symbolic_net, chunks, attention])
def test_operators_become_plain_operations_of_torch(make: Callable[[], OnnxGraph]) -> None:
    """What depends on shapes is constant, so that nothing asks a tensor for its values while frames flow."""
    graph = make()
    _, module = to_torch(entry_of(graph), graph)
    kinds = {type(module.get_submodule(str(node.target))) for node in module.graph.find_nodes(op="call_module")}
    assert kinds
    assert all(kind.__module__.startswith("torch.nn.") for kind in kinds)
    assert (nn.SiLU in kinds) is (make is chunks)


@pytest.mark.parametrize("config", [ExecutionConfig(), ExecutionConfig(Convolutions.CONTIGUOUS, folding=False)])
def test_torchs_execution_configs_run_it(config: ExecutionConfig) -> None:
    graph = symbolic_net()
    with torch.inference_mode():
        assert_near(converted(graph, config).backbone("output")(images(2)), run_each(graph, images(2)))


def uneven() -> OnnxGraph:
    """A Split into parts of three and two channels, which onnx2torch makes of three, and three that are not there."""
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),
        helper.make_node("Split", ["map"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Concat", ["b", "a"], ["result"], axis=1),
    ]
    shape = ["batch", 7, 4, 4]
    graph = graph_of(
        nodes[:1],
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs={"map": shape},
        constants={"filters": filters(7, 3, 4, 4)},
    )
    proto = graph.proto
    proto.graph.node.extend(nodes[1:])
    proto.graph.output[0].name = "result"
    proto.opset_import[0].version = 18
    return OnnxGraph("uneven", proto)


def test_what_gives_other_results_is_refused() -> None:
    for _ in range(2):  # only a verdict that results are equal is remembered
        with pytest.raises(ConfigurationError, match=r"^uneven cannot run on engine torch, because .* take engine "):
            converted(uneven())


def test_model_that_takes_one_image_at_a_time_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="which needs a model for any number of images: take engine onnxrunt"):
        converted(mixing())


@pytest.fixture
def detector(tmp_path: Path) -> str:
    """The path of a small detector."""
    metadata = ultralytics(imgsz="[32, 32]", names="{0: 'a', 1: 'b', 2: 'c'}")
    model = network(21, 7, scale=[32, 32, 16, 16, 1, 1, 1], metadata=metadata, transposed=True, batch=1)
    path = tmp_path / "mine.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


def test_detector_finds_what_the_onnx_model_finds(detector: str) -> None:
    """Each box is found once by both engines, in any order: scores near 1 are equal after rounding, and decide it.

    Each engine adds up the products of a logit in its own order, in float32: 48 terms. Boxes of a class that overlap
    too much have scores that differ by far more, so both engines keep the same one.
    """
    found = []
    for on_torch in (False, True):
        model = load_model(ModelSpec(detector, device="cpu", on_torch=on_torch))
        assert isinstance(model.network, TorchNetwork) is on_torch
        assert model.entry.labels == ("a", "b", "c")
        settings = StageSettings(batch_size=2, drop_policy=DropPolicy.BLOCK)
        with LocalPipeline(model, settings, limits=Limits(0.3, 0.5, 300)) as pipeline:
            found.append([result.detections for result in pipeline.run(photographs()[:4])])
    assert sum(map(len, found[0])) > 20
    for expected, detections in zip(*found, strict=True):
        place = np.abs(detections.boxes[:, None] - expected.boxes).max(2).argmin(1)
        assert sorted(place.tolist()) == list(range(len(expected)))
        assert detections.labels.tolist() == expected.labels[place].tolist()
        np.testing.assert_allclose(detections.boxes, expected.boxes[place], rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(detections.scores, expected.scores[place], rtol=1e-4, atol=1e-5)


def test_weights_are_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streamed and resident weights run the same kernels at the same batch size, up to the layout of the weights."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graph = symbolic_net()
    outputs = []
    for residency in (Residency.RESIDENT, Residency.TWO_STAGE):
        entry, module = to_torch(entry_of(graph), graph)
        entry = replace(entry, labels=tuple("abcdefghij"))
        settings = StageSettings(split_point="output", drop_policy=DropPolicy.BLOCK, weights_residency=residency)
        with LocalPipeline(SplitModel(TorchNetwork(entry, module)), settings, limits=Limits(0.0)) as pipeline:
            outputs.append([torch.from_numpy(result.detections.scores) for result in pipeline.run(photographs()[:4])])
            report = pipeline.backbone.report(0.0).weights
            assert (report is not None) is (residency is Residency.TWO_STAGE)
    assert_near(outputs[1], outputs[0])
    assert len({tuple(scores.tolist()) for scores in outputs[0]}) == 4  # images differ


def test_models_of_both_kinds_share_a_name(detector: str) -> None:
    spec = ModelSpec(detector, device="cpu", on_torch=True)
    model = load_model(spec)
    assert load_model(spec) is model
    assert load_model(replace(spec, on_torch=False)) is not model
    of_torch = ModelSpec("shapes", device="cpu")
    shared = load_model(of_torch)
    assert load_model(replace(of_torch, on_torch=True)) is shared


def test_a_network_in_float16_runs_on_torch_as_well(tmp_path: Path) -> None:
    path = tmp_path / "half.onnx"
    path.write_bytes(half_inside(exported(net(), by_dynamo=False, is_symbolic=True).proto).SerializeToString())
    model = converted(read_onnx(path))
    assert FLOAT16 in {spec.dtype for point in model.split_points for spec in point.tensors}
    with torch.inference_mode():
        expected = model.head("input")(images(2))
        for point in model.split_points:  # torch runs the same operators on the same features, whatever the split point
            features = model.backbone(point.name)(images(2))
            assert [dtype_of(each) for each in features] == [spec.dtype for spec in point.tensors]
            assert all(map(torch.equal, model.head(point.name)(*features), expected)), point.name
