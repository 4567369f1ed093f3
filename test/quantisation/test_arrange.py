"""Quantised graphs, arranged so that the values of split points cross, with the same results."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")

from split_infer_ros.quantisation.arrange import arrange  # noqa: E402
from split_infer_ros.quantisation.scope import Scope, ignored_nodes  # noqa: E402

ADD, MUL, Q, DQ = "Add", "Mul", "QuantizeLinear", "DequantizeLinear"


def shared_quantiser() -> onnx.ModelProto:
    """x -> a -> quantiser -> b and c: one quantiser for what lies before and behind a split point at (a, b)."""
    make = onnx.helper.make_node
    nodes = [
        make(ADD, ["x", "one"], ["a"], name="a"),
        make(Q, ["a", "scale", "zero"], ["a_q"], name="a_q"),
        make(DQ, ["a_q", "scale", "zero"], ["a_dq"], name="a_dq"),
        make(MUL, ["a_dq", "two"], ["c"], name="c"),
        make(MUL, ["one", "two"], ["unused"], name="unused"),
        make(ADD, ["a_dq", "two"], ["b"], name="b"),
        make(ADD, ["b", "c"], ["y"], name="y"),
    ]
    constants = {
        "one": np.float32(1),
        "two": np.float32(2),
        "scale": np.float32(0.1),
        "zero": np.uint8(0),
    }
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "shared",
        [value("x", onnx.TensorProto.FLOAT, [1, 4])],
        [value("y", onnx.TensorProto.FLOAT, [1, 4])],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)])


def test_each_node_gets_its_own_quantiser_and_split_points_their_order() -> None:
    proto, before = shared_quantiser(), shared_quantiser()
    arrange(proto, [["a"], ["a", "b"]])
    onnx.checker.check_model(proto)
    names = [node.name for node in proto.graph.node]
    assert names.index("b") < names.index("c"), "b crosses, so it lies before the split point"
    assert "unused" not in names
    quantisers = [node for node in proto.graph.node if node.op_type == Q]
    assert [node.input[0] for node in quantisers] == ["a", "a"]
    assert names.index(quantisers[0].name) < names.index("b") < names.index(quantisers[1].name)
    x = np.array([[0.03, 0.5, 1.27, 3.0]], np.float32)
    expected, found = (reference.ReferenceEvaluator(each).run(None, {"x": x}) for each in (before, proto))
    assert np.array_equal(found[0], expected[0])  # the same operations on the same values


def network() -> onnx.GraphProto:
    """Two layers with weights, an activation between them, and arithmetic behind them."""
    make = onnx.helper.make_node
    nodes = [
        make("MatMul", ["x", "w1"], ["h"], name="first"),
        make("Relu", ["h"], ["r"], name="activation"),
        make("MatMul", ["r", "w2"], ["s"], name="second"),
        make("MatMul", ["r", "w2"], ["t"], name="third"),
        make("Softmax", ["s"], ["p"], name="decoding"),
        make(ADD, ["p", "t"], ["y"], name="joining"),
    ]
    weights = [onnx.numpy_helper.from_array(np.full((4, 4), 0.3, np.float32), name) for name in ("w1", "w2")]
    return onnx.helper.make_graph(nodes, "network", [], [], weights)


def test_what_follows_the_last_weights_stays_in_float32() -> None:
    assert set(ignored_nodes(network(), Scope.ALL_LAYERS)) == {"decoding", "joining"}
    assert set(ignored_nodes(network(), Scope.ALL_BUT_LAST)) == {"decoding", "joining", "second", "third"}
