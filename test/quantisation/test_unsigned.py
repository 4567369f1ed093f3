"""Activations become uint8 with a zero point that is 128 higher. No result changes, and weights stay in int8."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from split_infer_ros.quantisation.unsigned import make_unsigned  # noqa: E402

SIDE = 6


def network(zero_point: int) -> onnx.ModelProto:
    """Two quantised values that meet in a Concat before a convolution. They share one zero point with its weights."""
    random = np.random.default_rng(1)
    constants = {
        "scale": np.float32(0.05),
        "zero": np.int8(zero_point),
        "weights": random.integers(-63, 64, (4, 6, 3, 3)).astype(np.int8),
        "zero_of_weights": np.int8(0),
    }
    quantisers = []
    for name in ("one", "two"):
        quantisers += [
            helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}/codes"]),
            helper.make_node("DequantizeLinear", [f"{name}/codes", "scale", "zero"], [f"{name}/float"]),
        ]
    shared = "zero" if zero_point == 0 else "zero_of_weights"
    nodes = [
        *quantisers,
        helper.make_node("Concat", ["one/float", "two/float"], ["both"], axis=1),
        helper.make_node("DequantizeLinear", ["weights", "scale", shared], ["weights/float"]),
        helper.make_node("Conv", ["both", "weights/float"], ["sums"]),
    ]
    shape = [1, 3, SIDE, SIDE]
    graph = helper.make_graph(
        nodes,
        "two",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("one", "two")],
        [helper.make_tensor_value_info("sums", TensorProto.FLOAT, [1, 4, SIDE - 2, SIDE - 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


def images() -> dict[str, np.ndarray]:
    random = np.random.default_rng(2)
    return {name: random.normal(0, 3, (1, 3, SIDE, SIDE)).astype(np.float32) for name in ("one", "two")}


def as_written(model: onnx.ModelProto) -> np.ndarray:
    """What ONNX Runtime computes, node by node, without its own kernels for int8."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (found,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, images())
    return np.asarray(found)


@pytest.mark.parametrize("zero_point", [0, 17, -128])
def test_results_stay_the_same_to_the_bit(zero_point: int) -> None:
    """The same whole numbers are subtracted from each other, so the floats behind them are equal."""
    model = network(zero_point)
    before = as_written(model)
    make_unsigned(model)
    np.testing.assert_array_equal(as_written(model), before)
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    zeros = {
        str(node.input[2]): tensors[node.input[2]]
        for node in model.graph.node
        if node.op_type.endswith("uantizeLinear")
    }
    assert {(str(zero.dtype), int(zero)) for zero in zeros.values()} == {("int8", 0), ("uint8", zero_point + 128)}


def test_openvino_computes_what_meets_in_a_concat() -> None:
    """With int8 and the zero point 0, OpenVINO 2026.4 is 28 % off. Sums are added in any order: 1e-5 of the largest."""
    openvino = pytest.importorskip("openvino")
    model = network(0)
    make_unsigned(model)
    core = openvino.Core()
    compiled = core.compile_model(
        core.read_model(model.SerializeToString(), b""), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    (found,), expected = compiled(images()).values(), as_written(model)
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
