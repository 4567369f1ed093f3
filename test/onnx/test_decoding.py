"""A graph is divided behind its last layers, unless what follows only moves values."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")
from decoding_graphs import detector, node
from small_graphs import IMAGE_SHAPE, graph_of

from split_infer_ros.onnx.decoding import divide
from split_infer_ros.onnx.graph import OnnxGraph


def operators(graph: OnnxGraph) -> list[str]:
    return [each.op_type for each in graph.proto.graph.node]


def test_a_graph_is_divided_behind_its_last_layers() -> None:
    parts = divide(detector())
    assert parts is not None
    network, decoding = parts
    assert operators(network) == ["Conv", "Relu", "Conv", "Conv"]
    assert operators(decoding) == ["Sigmoid", "Reshape", "Transpose", "Softmax", "Conv", "Reshape", "Mul"]


def test_what_only_moves_values_is_not_cut_off() -> None:
    nodes = [node("Conv", "images w", "found"), node("Transpose", "found", "turned", perm=[0, 2, 3, 1])]
    graph = graph_of(
        nodes,
        inputs={"images": ["batch", *IMAGE_SHAPE]},
        outputs={"turned": ["batch", *IMAGE_SHAPE[1:], 2]},
        constants={"w": np.ones((2, 3, 1, 1), np.float32) / 3},
    )
    assert divide(graph) is None
