"""ONNX Runtime's operators on whole numbers, said in ONNX's own, compute the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.quantised_operators import with_plain_operators  # noqa: E402
from split_infer_ros.onnx.shapes import BATCH, infer_shapes  # noqa: E402

pytestmark = pytest.mark.numeric

SHAPE = (4, 5, 6)  # of one image
X = ("x", "scale_x", "zero_x")
RESULT = ("scale_y", "zero_y")


def constants(dtype: type[np.generic]) -> dict[str, np.ndarray]:
    """Scales, zero points and weights, by name."""
    random = np.random.default_rng(0)
    zero = 0 if dtype is np.int8 else 128
    return {
        "scale_x": np.array(0.05, np.float32),
        "zero_x": np.array(zero + 3, dtype),
        "scale_y": np.array(0.1, np.float32),
        "zero_y": np.array(zero - 5, dtype),
        "scale_small": np.array(1 / 256, np.float32),
        "zero_small": np.array(zero - 128, dtype),
        "weights": random.integers(-20, 20, (6, 7)).astype(np.int8),
        "turned": random.integers(-20, 20, (7, 6)).astype(np.int8),
        "scale_w": np.array(0.02, np.float32),
        "zero_w": np.array(0, np.int8),
        "scales_w": random.uniform(0.01, 0.03, 7).astype(np.float32),
        "zeros_w": np.zeros(7, np.int8),
        "bias": random.integers(-900, 900, 7).astype(np.int32),
        "condition": random.random(SHAPE) < 0.5,
    }


CASES: list[tuple[str, tuple[str, ...], dict[str, Any], tuple[int, ...]]] = [
    ("QLinearAdd", (*X, *X, *RESULT), {}, SHAPE),
    ("QLinearMul", (*X, *X, *RESULT), {}, SHAPE),
    ("QLinearConcat", (*RESULT, *X, *X), {"axis": 1}, (8, 5, 6)),
    ("QLinearSigmoid", (*X, "scale_small", "zero_small"), {}, SHAPE),
    ("QLinearLeakyRelu", (*X, *RESULT), {"alpha": 0.2}, SHAPE),
    ("QLinearSoftmax", (*X, "scale_small", "zero_small"), {"axis": -1, "opset": 17}, SHAPE),
    ("QLinearAveragePool", (*X, *RESULT), {"kernel_shape": [2, 2], "strides": [2, 2]}, (4, 2, 3)),
    ("QLinearGlobalAveragePool", (*X, *RESULT), {"channels_last": 0}, (4, 1, 1)),
    ("QLinearWhere", ("condition", *X, *X, *RESULT), {}, SHAPE),
]
PRODUCTS = [
    ((*X, "weights", "scale_w", "zero_w", "bias", *RESULT), {"alpha": 1.0}),
    ((*X, "turned", "scales_w", "zeros_w", "bias", *RESULT), {"alpha": 1.0, "transB": 1}),
    ((*X, "weights", "scales_w", "zeros_w"), {"alpha": 1.0}),
]


def graph_with(operator: str, names: tuple[str, ...], attributes: dict[str, Any], dtype: Any, rank: int) -> OnnxGraph:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    known = constants(dtype)
    shape: list[str | int] = ["batch", *SHAPE] if rank == 4 else ["batch", 6]
    result = TensorProto.FLOAT if operator == "QGemm" and len(names) == 6 else kind
    node = helper.make_node(operator, list(names), ["y"], name="node", domain="com.microsoft", **attributes)
    model = helper.make_model(
        helper.make_graph(
            [node],
            "graph",
            [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info("y", result, None)],
            [numpy_helper.from_array(known[name], name) for name in dict.fromkeys(names) if name in known],
        ),
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)],
        ir_version=9,
    )
    return OnnxGraph("graph", model)


def results(graph: OnnxGraph, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(graph.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": x})
    return np.asarray(found)


def drawn(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    limits = np.iinfo(dtype)
    return np.random.default_rng(1).integers(limits.min, limits.max + 1, (3, *shape)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("operator", "names", "attributes", "shape"), CASES, ids=[case[0] for case in CASES])
def test_an_operator_computes_the_same(
    operator: str, names: tuple[str, ...], attributes: dict[str, Any], shape: tuple[int, ...], dtype: Any
) -> None:
    graph = graph_with(operator, names, attributes, dtype, rank=4)
    plain = with_plain_operators(graph)
    assert not [node for node in plain.proto.graph.node if node.domain]
    found, expected = (results(each, drawn(dtype, SHAPE)) for each in (plain, graph))
    assert found.dtype == expected.dtype == dtype
    assert found.shape == expected.shape == (3, *shape)
    assert len(np.unique(expected)) > 2
    # A value in the middle between two steps may be rounded either way.
    assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
    assert infer_shapes(graph, SHAPE)["y"].dimensions == (BATCH, *shape)


@pytest.mark.parametrize(("names", "attributes"), PRODUCTS)
def test_a_product_computes_the_same(names: tuple[str, ...], attributes: dict[str, Any]) -> None:
    graph = graph_with("QGemm", names, attributes, np.int8, rank=2)
    found, expected = (results(each, drawn(np.int8, (6,))) for each in (with_plain_operators(graph), graph))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape == (3, 7)
    if expected.dtype == np.float32:
        assert np.allclose(found, expected, rtol=1e-5, atol=1e-4)  # sums of six products that are exact in both
    else:
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1


def test_other_operators_stay_as_they_are() -> None:
    graph = graph_with("QLinearGlobalAveragePool", (*X, *RESULT), {"channels_last": 1}, np.int8, rank=4)
    assert with_plain_operators(graph) is graph
