"""What exporters say in different ways is read in one way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_nets import (  # noqa: E402
    IMAGE_SHAPE,
    as_paddle_writes,
    assert_near,
    attention,
    exported,
    filters,
    images,
    net,
    run,
    run_each,
)

from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.onnx.batch import with_symbolic_batch  # noqa: E402
from split_infer_ros.onnx.file import read_onnx  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402

pytestmark = pytest.mark.numeric


def read(proto: onnx.ModelProto, folder: Path) -> OnnxGraph:
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return read_onnx(path)


def test_constants_of_nodes_become_weights(tmp_path: Path) -> None:
    original = exported(net(), by_dynamo=False, is_symbolic=True)
    graph = read(as_paddle_writes(original.proto), tmp_path)
    assert not [node for node in graph.proto.graph.node if node.op_type == "Constant"]
    names = {str(tensor.name) for tensor in original.proto.graph.initializer}
    assert names <= {str(tensor.name) for tensor in graph.proto.graph.initializer}
    assert_near(run(graph, images(2)), run(original, images(2)))


def test_a_fixed_batch_in_constants_of_nodes_is_rewritten(tmp_path: Path) -> None:
    graph = read(as_paddle_writes(attention().proto), tmp_path)
    symbolic = with_symbolic_batch(graph, IMAGE_SHAPE)
    assert symbolic is not None
    assert_near(run(symbolic, images(3)), run_each(attention(), images(3)))


@pytest.mark.parametrize(
    ("attribute", "value", "expected"),
    [
        ("value_float", 1.5, np.array(1.5, np.float32)),
        ("value_floats", [1.5, 2.0], np.array([1.5, 2.0], np.float32)),
        ("value_int", 3, np.array(3, np.int64)),
        ("value_ints", [3, 4], np.array([3, 4], np.int64)),
    ],
)
def test_each_form_of_a_constant_is_read(attribute: str, value: object, expected: np.ndarray, tmp_path: Path) -> None:
    model = helper.make_model(
        helper.make_graph(
            [
                helper.make_node("Constant", [], ["constant"], **{attribute: value}),
                helper.make_node("Cast", ["constant"], ["factor"], to=TensorProto.FLOAT),
                helper.make_node("ReduceSum", ["factor"], ["sum"], keepdims=0),
                helper.make_node("Mul", ["images", "sum"], ["result"]),
            ],
            "graph",
            [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", *IMAGE_SHAPE])],
            [helper.make_tensor_value_info("result", TensorProto.FLOAT, ["batch", *IMAGE_SHAPE])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    (tensor,) = read(model, tmp_path).proto.graph.initializer
    found = numpy_helper.to_array(tensor)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert found.shape == expected.shape


def test_nodes_in_any_order_are_sorted(tmp_path: Path) -> None:
    original = exported(net(), by_dynamo=False, is_symbolic=True)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(original.proto)
    nodes = list(original.proto.graph.node)
    shuffled.graph.ClearField("node")
    shuffled.graph.node.extend(nodes[index] for index in np.random.default_rng(0).permutation(len(nodes)))
    assert_near(run(read(shuffled, tmp_path), images(2)), run(original, images(2)))


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    proto = exported(net(), by_dynamo=False, is_symbolic=True).proto
    proto.graph.node[0].input[0] = proto.graph.node[-1].output[0]
    with pytest.raises(ConfigurationError, match="is no valid ONNX model"):
        read(proto, tmp_path)


def test_outputs_without_a_shape_get_one(tmp_path: Path) -> None:
    proto = exported(net(), by_dynamo=False, is_symbolic=True).proto
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    assert read(proto, tmp_path).outputs[0].shape == (None, 10)


@pytest.mark.parametrize("open_length", [-1, 0])
def test_lengths_below_one_are_open(open_length: int, tmp_path: Path) -> None:
    proto = exported(net(), by_dynamo=False, is_symbolic=True).proto
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = open_length
    graph = read(proto, tmp_path)
    assert graph.inputs[0].shape == (None, *IMAGE_SHAPE)
    assert graph.outputs[0].shape == (None, 10)


def test_weights_may_be_listed_as_inputs(tmp_path: Path) -> None:
    proto = exported(net(), by_dynamo=False, is_symbolic=True).proto
    proto.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in proto.graph.initializer
    )
    assert [tensor.name for tensor in read(proto, tmp_path).inputs] == ["images"]
    assert filters(1).dtype == np.float32
