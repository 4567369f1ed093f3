"""How large a graph's weights are, wherever they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.model_source import approximate_weight_bytes, num_weight_bytes

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto
ELEMENTS = 1000


def graph_proto() -> onnx.ModelProto:
    weight = onnx.numpy_helper.from_array(np.ones(ELEMENTS, np.float32), "weight")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", ELEMENTS]) for name in ("x", "y")]
    nodes = [helper.make_node("Mul", ["x", "weight"], ["y"])]
    return helper.make_model(helper.make_graph(nodes, "one", ends[:1], ends[1:], [weight]))


def test_weights_in_memory_are_counted() -> None:
    graph = OnnxGraph("one", graph_proto())
    assert num_weight_bytes(graph) == approximate_weight_bytes(graph) == 4 * ELEMENTS


def test_weights_in_a_separate_file_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "one.onnx"
    onnx.save_model(graph_proto(), str(path), save_as_external_data=True, location="weights", size_threshold=0)
    graph = OnnxGraph("one", onnx.load_model(str(path), load_external_data=False), path)
    assert num_weight_bytes(graph) < ELEMENTS
    assert approximate_weight_bytes(graph) == 4 * ELEMENTS


def test_a_graph_that_was_not_read_stays_so(tmp_path: Path) -> None:
    whole, content = OnnxGraph("one", graph_proto()), tmp_path / "content"
    content.write_bytes(bytes(5000))
    graph = OnnxGraph.described("one", whole.facts, lambda: pytest.fail("it was read"), content)
    assert approximate_weight_bytes(graph) == 5000
