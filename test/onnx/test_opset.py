"""Graphs in an older version of ONNX's operators, run by ONNX's own reference evaluator."""

from __future__ import annotations

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from split_infer_ros.errors import ConfigurationError  # noqa: E402
from split_infer_ros.onnx.graph import OnnxGraph  # noqa: E402
from split_infer_ros.onnx.opset import with_opset  # noqa: E402

IMAGES = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)


def graph_of(
    nodes: list[onnx.NodeProto], *, version: int, rank: int = 4, constants: dict[str, np.ndarray] | None = None
) -> OnnxGraph:
    """A graph from ``images`` to ``result``."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, list(IMAGES.shape))],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, ["?"] * rank)],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    return OnnxGraph("small", helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=10))


def result_of(graph: OnnxGraph) -> np.ndarray:
    (result,) = ReferenceEvaluator(graph.proto).run(None, {"images": IMAGES})
    return result


def split() -> OnnxGraph:
    nodes = [
        helper.make_node("Split", ["images"], ["a", "b"], axis=1, num_outputs=2),
        helper.make_node("Sub", ["a", "b"], ["result"]),
    ]
    return graph_of(nodes, version=18)


def reduced() -> OnnxGraph:
    nodes = [helper.make_node("ReduceMax", ["images", "axes"], ["result"], keepdims=0)]
    return graph_of(nodes, version=18, rank=2, constants={"axes": np.array([1, 3])})


def cast() -> OnnxGraph:
    nodes = [
        helper.make_node("Cast", ["images"], ["doubled"], to=TensorProto.DOUBLE, saturate=1),
        helper.make_node("Cast", ["doubled"], ["result"], to=TensorProto.FLOAT),
    ]
    return graph_of(nodes, version=21)


@pytest.mark.parametrize("make", [split, reduced, cast])
def test_older_version_gives_the_same_results(make: object) -> None:
    """The same evaluator runs the same operator on the same numbers, so the results are equal bit by bit."""
    graph = make()  # type: ignore[operator]
    expected = result_of(graph)
    older = with_opset(graph, 17)
    assert [each.version for each in older.proto.opset_import] == [17]
    onnx.checker.check_model(older.proto)
    np.testing.assert_array_equal(result_of(older), expected)
    assert expected.std() > 0.1
    assert graph.proto.opset_import[0].version > 17  # what was given did not change


@pytest.mark.parametrize(("mode", "before"), [("linear", b"bilinear"), ("cubic", b"bicubic"), ("nearest", b"nearest")])
def test_grid_sample_gets_the_names_of_its_modes_back(mode: str, before: bytes) -> None:
    """The evaluator knows the new names alone, so the names are compared."""
    places = np.zeros((2, 3, 3, 2), np.float32)
    node = helper.make_node("GridSample", ["images", "places"], ["result"], mode=mode)
    older = with_opset(graph_of([node], version=20, constants={"places": places}), 16)
    assert [each.s for each in older.proto.graph.node[0].attribute] == [before]


def test_older_graph_is_returned_as_it_is() -> None:
    graph = graph_of([helper.make_node("Relu", ["images"], ["result"])], version=17)
    assert with_opset(graph, 17) is graph


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        (helper.make_node("Gelu", ["images"], ["result"]), {}),  # came with version 20
        (helper.make_node("Pad", ["images", "pads", "", "axes"], ["result"]), {"pads": [1, 1], "axes": [3]}),
        (helper.make_node("Resize", ["images", "", "scales"], ["result"], mode="linear", antialias=1), {"scales": []}),
    ],
)
def test_what_the_older_version_lacks_is_refused_by_name(node: onnx.NodeProto, constants: dict[str, list[int]]) -> None:
    arrays = {name: np.array(values, np.int64) for name, values in constants.items()}
    with pytest.raises(ConfigurationError, match=f"^small uses {node.op_type} of ONNX's operators version 20 in"):
        with_opset(graph_of([node], version=20, constants=arrays), 17)
