"""ONNX models, split where a model of torch is split, with the results of the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_nets import (  # noqa: E402
    IMAGE_SHAPE,
    Net,
    as_paddle_writes,
    assert_near,
    attention,
    boxes_without_batch,
    branching,
    exported,
    filters,
    images,
    integers,
    mixing,
    net,
    reused,
    run,
    run_each,
    sized,
)
from small_graphs import graph_of  # noqa: E402

from split_infer_ros.buffers.host_arrays import FLOAT32, dtype_of  # noqa: E402
from split_infer_ros.engines.engine import Engine  # noqa: E402
from split_infer_ros.engines.execution_config import ExecutionConfig  # noqa: E402
from split_infer_ros.engines.precision import Precision  # noqa: E402
from split_infer_ros.errors import ConfigurationError, UnknownSplitPointError  # noqa: E402
from split_infer_ros.models.classifier import classify  # noqa: E402
from split_infer_ros.models.entry import ModelEntry  # noqa: E402
from split_infer_ros.models.preprocess import Preprocess  # noqa: E402
from split_infer_ros.onnx.file import read_onnx  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.image_input import read_image_input  # noqa: E402
from split_infer_ros.split.model import SplitModel  # noqa: E402
from split_infer_ros.split.onnx_network import OnnxNetwork  # noqa: E402
from split_infer_ros.split.torch_network import TorchNetwork, torch_network  # noqa: E402
from split_infer_ros.weight_streaming.packed_weights import streamable  # noqa: E402

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")
NAMES = ["input", "stem.1", "body.0", "body.1", "down", "join", "flatten", "output"]


def entry_of(graph: OnnxGraph | None = None) -> ModelEntry:
    """The entry of a model that takes images of IMAGE_SHAPE."""
    _, height, width = IMAGE_SHAPE
    return ModelEntry(
        name=graph.name if graph else "net",
        summary="",
        build=lambda: graph or net(),
        weights=None,
        preprocess=Preprocess(height, width),
        labels=(),
        default_split_point=None,
        decode=classify(height, width),
    )


def model_of(graph: OnnxGraph, execution_config: ExecutionConfig | None = None) -> SplitModel:
    return SplitModel(OnnxNetwork(entry_of(graph), graph, execution_config=execution_config), CPU, execution_config)


def assert_split_points_give(model: SplitModel, batch: Tensor, expected: tuple[Tensor, ...]) -> None:
    """Asserts that the partitions at every split point together give the expected results."""
    for point in model.split_points:
        features = model.backbone(point.name)(batch)
        assert [(tuple(each.shape[1:]), dtype_of(each)) for each in features] == [
            (spec.shape, spec.dtype) for spec in point.tensors
        ]
        assert_near(model.head(point.name)(*features), expected)


@pytest.mark.parametrize("is_symbolic", [False, True])
@pytest.mark.parametrize("by_dynamo", [False, True])
def test_exported_network_is_split_like_the_network_itself(by_dynamo: bool, is_symbolic: bool) -> None:
    if by_dynamo:
        pytest.importorskip("onnxscript")
    graph = exported(net(), by_dynamo=by_dynamo, is_symbolic=is_symbolic)
    model = model_of(graph)
    of_torch = SplitModel(TorchNetwork(entry_of(), net()))
    assert [point.name for point in model.split_points] == NAMES
    assert [point.name for point in of_torch.split_points] == NAMES
    for found, expected in zip(model.split_points, of_torch.split_points, strict=True):
        assert found.aliases == expected.aliases
        assert found.bytes_per_image == expected.bytes_per_image
    assert model.network.note == ""
    with torch.inference_mode():
        assert_split_points_give(model, images(3), run_each(graph, images(3)))
        assert_split_points_give(model, images(1), (net()(images(1)),))


def test_a_file_as_paddle_writes_it_is_split_everywhere(tmp_path: Path) -> None:
    original = exported(net(), by_dynamo=False, is_symbolic=True)
    proto = as_paddle_writes(original.proto)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = -1
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    model = model_of(read_onnx(tmp_path / "net.onnx"))
    assert model.network.note == ""
    assert [point.name for point in model.split_points] == NAMES
    assert_split_points_give(model, images(3), run_each(original, images(3)))


@pytest.mark.parametrize("make", [attention, branching, sized])
def test_made_graphs_run_split_in_batches(make: Callable[[], OnnxGraph]) -> None:
    graph = make()
    model = model_of(graph)
    assert model.network.note == ""
    assert len(model.split_points) > 2
    assert_split_points_give(model, images(3), run_each(graph, images(3)))


def test_nodes_without_blocks_name_split_points_where_one_tensor_crosses() -> None:
    assert [point.name for point in model_of(sized()).split_points] == [
        "input",
        "relu_1",
        "conv_2",
        "reshape_1",
        "output",
    ]
    graph = reused()  # everywhere inside, the images cross as well
    model = model_of(graph)
    assert [point.name for point in model.split_points] == ["input", "output"]
    assert_split_points_give(model, images(3), run_each(graph, images(3)))


@pytest.mark.parametrize("batch", [1, "batch"])
def test_images_run_one_by_one_where_a_batch_would_mix_them(batch: str | int) -> None:
    graph = mixing(batch)
    model = model_of(graph)
    assert "the images of a batch run one by one" in model.network.note
    assert len(model.split_points) > 2
    assert_split_points_give(model, images(3), run_each(graph, images(3)))


def test_outputs_without_a_batch_are_stacked() -> None:
    graph = boxes_without_batch()
    model = model_of(graph)
    assert [point.name for point in model.split_points] == ["input", "relu_1"]
    alone = [run(graph, image[None]) for image in images(3)]
    boxes, scores = model.head("relu_1")(*model.backbone("relu_1")(images(3)))
    for index, (own_boxes, own_scores) in enumerate(alone):
        assert torch.equal(boxes[index, : len(own_boxes)], own_boxes)
        assert_near([scores[index, : len(own_scores)]], [own_scores])


def test_model_that_cannot_be_split_says_so() -> None:
    graph = graph_of(
        [onnx.helper.make_node("Flatten", ["images"], ["result"])],
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs={"result": ["batch", 768]},
    )
    model = model_of(graph)
    assert (
        model.network.note == "small has no split point but its ends, so the backbone or the head runs it as a whole."
    )
    assert model.split_point("default").name == "input"
    assert_split_points_give(model, images(2), (images(2).flatten(1),))


def test_images_of_any_size_are_cut_for_the_entrys_size() -> None:
    graph = graph_of(
        [
            onnx.helper.make_node(
                "MaxPool", ["images"], ["half"], name="/pool/MaxPool", kernel_shape=[2, 2], strides=[2, 2]
            ),
            onnx.helper.make_node("Neg", ["half"], ["negative"], name="/out/Neg"),
            onnx.helper.make_node("Reshape", ["negative", "flat"], ["result"], name="/out/Reshape"),
        ],
        inputs={"images": ["batch", 3, "height", "width"]},
        outputs={"result": ["batch", "length"]},
        constants={"flat": integers(0, -1)},
    )
    model = model_of(graph)
    assert [point.name for point in model.split_points] == ["input", "pool", "output"]
    assert model.split_point("output").tensors[0].shape == (192,)


def test_segments_follow_each_other() -> None:
    graph = exported(net(), by_dynamo=False, is_symbolic=True)
    model = model_of(graph)
    for segments in model.segments():
        values: tuple[Tensor, ...] = (images(2),)
        for point, segment in zip(model.split_points[1:], segments, strict=True):
            values = segment(*values)
            assert_near(values, model.backbone(point.name)(images(2)))


def test_parameters_are_counted_on_each_side() -> None:
    model = model_of(exported(net(), by_dynamo=False, is_symbolic=True))
    assert model.network.num_parameters() == sum(each.numel() for each in net().parameters())
    assert model.network.num_parameters("input") == 0
    assert model.network.num_parameters("stem.1") == 3 * 8 * 9 + 8
    assert model.network.num_parameters("output") == model.network.num_parameters()


def test_kernels_are_the_nodes_that_compute() -> None:
    model = model_of(exported(net(), by_dynamo=False, is_symbolic=True))
    assert isinstance(model.network, OnnxNetwork)
    counts = [len(model.kernels_before(name)) for name in NAMES]
    assert counts == sorted(set(counts)), "each partition has more than the one before it"
    assert (counts[0], counts[-1]) == (0, len(model.network.prepared.dataflow.computing))
    assert {each.weight_bytes for each in model.kernels_before("output")} == {0}, "an engine has memory of its own"


def test_fingerprint_is_that_of_the_operations() -> None:
    torch.manual_seed(1)
    others = {"same": exported(net(), by_dynamo=False, is_symbolic=True), "retrained": None, "wider": None}
    retrained, wider = Net().eval(), Net().eval()
    wider.classes = nn.Linear(512, 11)
    prints = {
        name: model_of(exported(module, by_dynamo=False, is_symbolic=True)).network.fingerprint
        for name, module in (("first", net()), ("retrained", retrained), ("wider", wider))
    }
    assert prints["first"] == prints["retrained"] == model_of(others["same"]).network.fingerprint
    assert prints["wider"] != prints["first"]
    assert len(prints["first"]) == 12


def test_partitions_are_made_once() -> None:
    model = model_of(sized())
    assert model.backbone("conv_2") is model.backbone("conv_2")
    with pytest.raises(UnknownSplitPointError, match="small has no split point 'conv_3'"):
        model.head("conv_3")


@pytest.mark.parametrize("make", [sized, mixing])
def test_arrays_give_arrays_with_the_bits_that_tensors_give(make: Callable[[], OnnxGraph]) -> None:
    """``mixing`` runs image by image, and ``sized`` all images at once."""
    model, batch = model_of(make()), images(3)
    assert model.takes_arrays
    assert np.array_equal(model.blank_images(2), np.zeros((2, *IMAGE_SHAPE), np.float32))
    for point in model.split_points:
        backbone, head = model.backbone(point.name), model.head(point.name)
        features, tensors = backbone(batch.numpy()), backbone(batch)
        found, expected = head(*features), head(*tensors)
        for one, other in zip((*features, *found), (*tensors, *expected), strict=True):
            assert isinstance(one, np.ndarray)
            assert isinstance(other, Tensor)
            assert np.array_equal(one, other.numpy())


def test_bf16_is_openvinos_though_another_engine_is_native() -> None:
    low = model_of(sized()).placed(CPU, ExecutionConfig(precision=Precision.BF16))
    assert low.execution_config == ExecutionConfig(engine=Engine.OPENVINO, precision=Precision.BF16)
    assert low.dtype == FLOAT32
    half = model_of(sized()).placed(CPU, ExecutionConfig(engine=Engine.ONNXRUNTIME, precision=Precision.FP16))
    with pytest.raises(ConfigurationError, match=r"^engine onnxruntime computes an ONNX file in fp32, not in fp16\."):
        half.backbone("output")


def test_engine_torch_stands_for_the_native_engine() -> None:
    model = model_of(sized(), ExecutionConfig())
    assert model.execution_config.engine is model.network.native_engine is Engine.ONNXRUNTIME
    assert model.placed(CPU, ExecutionConfig()).execution_config.engine is Engine.ONNXRUNTIME


def test_openvino_runs_the_same_split_points() -> None:
    pytest.importorskip("openvino")
    graph = exported(net(), by_dynamo=False, is_symbolic=False)
    model = model_of(graph).placed(CPU, ExecutionConfig(engine=Engine.OPENVINO))
    assert model.execution_config.engine is Engine.OPENVINO
    short = replace(model.split_point("body.1"))
    assert_near(model.head(short.name)(*model.backbone(short.name)(images(2))), run_each(graph, images(2)))


def test_what_needs_torchs_graph_refuses_an_onnx_model() -> None:
    with pytest.raises(
        ConfigurationError, match="Streaming weights needs a model of torch, and small is an ONNX model"
    ):
        torch_network(model_of(sized()), "Streaming weights", "leave it.")


def test_the_refusal_of_streamed_weights_proposes_engine_torch() -> None:
    with pytest.raises(ConfigurationError, match="take engine torch for an ONNX file, or leave weights_residency at"):
        streamable(model_of(sized()))


@pytest.mark.parametrize("batch", ["batch", 1])
@pytest.mark.parametrize("engine", [Engine.ONNXRUNTIME, Engine.OPENVINO])
def test_a_graph_of_other_inputs_splits_like_others(engine: Engine, batch: str | int) -> None:
    """Its images are grey values with the channels last, and it scales its result by a size that the package fills."""
    pytest.importorskip(engine.value)
    nodes = [
        onnx.helper.make_node("Cast", ["images"], ["float"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Transpose", ["float"], ["planes"], perm=[0, 3, 1, 2]),
        onnx.helper.make_node("Conv", ["planes", "first"], ["map"], strides=[2, 2]),
        onnx.helper.make_node("Conv", ["map", "second"], ["shrunk"], strides=[2, 2]),
        onnx.helper.make_node("GlobalAveragePool", ["shrunk"], ["pooled"]),
        onnx.helper.make_node("Flatten", ["pooled"], ["means"]),
        onnx.helper.make_node("Cast", ["orig_target_sizes"], ["sizes"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("Mul", ["means", "sizes"], ["scaled"]),
    ]
    graph = graph_of(
        nodes,
        inputs={"images": [batch, 16, 16, 3], "orig_target_sizes": [batch, 2]},
        outputs={"scaled": [batch, 2]},
        constants={"first": filters(4, 3, 3, 3), "second": filters(2, 4, 3, 3)},
        types={"images": onnx.TensorProto.UINT8, "orig_target_sizes": onnx.TensorProto.INT64},
    )
    taken = read_image_input(graph).graph
    model = model_of(taken, ExecutionConfig(engine=engine))
    names = [point.name for point in model.split_points]
    own = ["cast_1", "transpose_1", "conv_1", "conv_2", "globalaveragepool_1", "flatten_1"]
    assert names == ["input", *own, "output"]  # and none of the nodes that the package adds
    levels = (255 * images(3).sigmoid()).round()
    expected = functional.conv2d(levels, torch.from_numpy(filters(4, 3, 3, 3)), stride=2)
    expected = functional.conv2d(expected, torch.from_numpy(filters(2, 4, 3, 3)), stride=2).mean((2, 3)) * 16
    assert_split_points_give(model, levels, (expected,))
