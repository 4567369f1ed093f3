"""ONNX files that take a fixed number of images run with any batch, at every split point."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import helper  # noqa: E402
from onnx_nets import (  # noqa: E402
    IMAGE_SHAPE,
    assert_near,
    attention,
    exported,
    filters,
    images,
    integers,
    mixing,
    net,
    resized,
    run,
)
from small_graphs import graph_of  # noqa: E402

from split_infer_ros.buffers.host_arrays import dtype_of  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.models.classifier import classify  # noqa: E402
from split_infer_ros.models.entry import ModelEntry  # noqa: E402
from split_infer_ros.models.preprocess import Preprocess  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.onnx_network import OnnxNetwork  # noqa: E402

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
Make = Callable[[int], OnnxGraph]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every comparison is made anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def model_of(graph: OnnxGraph) -> SplitModel:
    _, height, width = IMAGE_SHAPE
    entry = ModelEntry(
        name=graph.name,
        summary="",
        build=lambda: graph,
        weights=None,
        preprocess=Preprocess(height, width),
        labels=(),
        default_split_point=None,
        decode=classify(height, width),
    )
    return SplitModel(OnnxNetwork(entry, graph))


def in_groups(graph: OnnxGraph, batch: Tensor, fixed: int) -> tuple[Tensor, ...]:
    """The file's own results: of so many images at a time, the last one of which is repeated."""
    runs = []
    for part in batch.split(fixed):
        filled = torch.cat([part, *[part[-1:]] * (fixed - len(part))])
        runs.append([result[: len(part)] for result in run(graph, filled)])
    return tuple(torch.cat(results) for results in zip(*runs, strict=True))


def assert_runs(model: SplitModel, graph: OnnxGraph, fixed: int, engine: Engine = Engine.ONNXRUNTIME) -> None:
    """Asserts that the partitions at every split point give the file's own results, whatever the batch."""
    placed = model.placed(CPU, ExecutionConfig(engine=engine))
    for count in (1, 3, 5, fixed):
        expected = in_groups(graph, images(count), fixed)
        for point in placed.split_points:
            features = placed.backbone(point.name)(images(count))
            assert [(tuple(each.shape), dtype_of(each)) for each in features] == [
                ((count, *spec.shape), spec.dtype) for spec in point.tensors
            ]
            assert_near(placed.head(point.name)(*features), expected)


def exported_net(fixed: int) -> OnnxGraph:
    return exported(net(), by_dynamo=False, is_symbolic=False, fixed=fixed)


# The rewriting is the same for both engines. OpenVINO, which compiles for long, gets the batch size that is also a
# number of channels.
FIXED = [
    *(pytest.param(fixed, Engine.ONNXRUNTIME) for fixed in (2, 4, 8)),
    *(pytest.param(fixed, Engine.OPENVINO, marks=[] if fixed == 8 else pytest.mark.slow) for fixed in (2, 4, 8)),
]


@pytest.mark.parametrize(("fixed", "engine"), FIXED)
@pytest.mark.parametrize("make", [exported_net, attention, resized])
def test_constants_that_hold_the_batch_are_rewritten(make: Make, fixed: int, engine: Engine) -> None:
    pytest.importorskip(engine.value)
    graph = make(fixed)
    model = model_of(graph)
    assert model.network.takes_batches
    assert model.network.note == ""
    assert_runs(model, graph, fixed, engine)


@pytest.mark.parametrize(("fixed", "engine"), FIXED)
def test_other_files_run_in_parts_of_their_batch(fixed: int, engine: Engine) -> None:
    pytest.importorskip(engine.value)
    graph = mixing(fixed)
    model = model_of(graph)
    assert not model.network.takes_batches
    assert f"takes {fixed} images at a time and gives other results for other numbers" in model.network.note
    assert len(model.split_points) > 2
    assert_runs(model, graph, fixed, engine)


def test_micro_batches_leave_a_fixed_batch_as_it_is() -> None:
    graph = mixing(4)
    placed = model_of(graph).placed(CPU, ExecutionConfig(engine=Engine.ONNXRUNTIME, micro_batch=2))
    assert_near(placed.head("input")(images(6)), in_groups(graph, images(6), 4))


def turned(fixed: int) -> OnnxGraph:
    """Mixes images, and has channels, as many as there are images, in front of them for a while."""
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),  # (fixed, fixed, 4, 4)
        helper.make_node("Transpose", ["map"], ["turned"], perm=[1, 0, 2, 3]),
        helper.make_node("Abs", ["turned"], ["sizes"]),
        helper.make_node("Transpose", ["sizes"], ["back"], perm=[1, 0, 2, 3]),
        helper.make_node("ReduceMean", ["back"], ["mean"], axes=[0, 2, 3], keepdims=1),
        helper.make_node("Sub", ["back", "mean"], ["centred"]),
        helper.make_node("ReduceMax", ["centred"], ["result"], axes=[2, 3], keepdims=0),
    ]
    return graph_of(
        nodes,
        inputs={"images": [fixed, *IMAGE_SHAPE]},
        outputs={"result": [fixed, fixed]},
        constants={"filters": filters(fixed, 3, 4, 4)},
    )


def test_a_dimension_as_long_as_the_batch_is_not_the_batch() -> None:
    graph = turned(4)
    model = model_of(graph)
    assert [point.name for point in model.split_points] == ["input", "conv_1", "transpose_2", "sub_1", "output"]
    assert_runs(model, graph, 4)


def test_a_symbolic_batch_shows_where_the_batch_is() -> None:
    graph = exported_net(8)  # which has eight channels
    names = [point.name for point in model_of(graph).split_points]
    assert names == [point.name for point in model_of(exported_net(1)).split_points]


def test_results_that_name_no_image_are_refused() -> None:
    nodes = [
        helper.make_node("Conv", ["images", "filters"], ["map"], strides=[4, 4]),
        helper.make_node("ReduceMean", ["map"], ["mean"], axes=[0, 2, 3], keepdims=1),
        helper.make_node("Sub", ["map", "mean"], ["centred"]),
        helper.make_node("Reshape", ["centred", "rows"], ["result"]),
    ]
    graph = graph_of(
        nodes,
        inputs={"images": [4, *IMAGE_SHAPE]},
        outputs={"result": [64, 6]},
        constants={"filters": filters(6, 3, 4, 4), "rows": integers(64, 6)},
    )
    with pytest.raises(ConfigurationError, match=r"takes 4 images at a time, and its output result .* has no row for"):
        model_of(graph)
