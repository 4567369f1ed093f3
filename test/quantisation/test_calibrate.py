"""Graphs that NNCF quantises."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("nncf")

from onnx_nets import images, mixing, run

from split_infer_ros.buffers.host_arrays import to_host
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.quantisation.calibrate import calibrate


def test_a_fixed_batch_is_filled_with_one_image() -> None:
    graph = mixing(4)
    shown = [to_host(images(1, seed)) for seed in range(3)]
    found = OnnxGraph("int8", calibrate(graph.proto, shown, count=3, ignored=[]))
    assert found.inputs[0].shape == graph.inputs[0].shape
    assert "QuantizeLinear" in {node.op_type for node in found.proto.graph.node}
    (values,), (expected,) = run(found, images(4)), run(graph, images(4))
    assert (values - expected).abs().max() <= 0.1 * expected.abs().max()  # a few steps of 1/127
