"""An ONNX graph in memory: what it says about its inputs and outputs, and how its content is identified."""

from __future__ import annotations

import numpy as np
import pytest

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.graph import OnnxGraph, OnnxTensor

onnx = pytest.importorskip("onnx")
helper, TensorProto = onnx.helper, onnx.TensorProto


def scaled(factor: float = 2.0, element: int = TensorProto.FLOAT, metadata: dict[str, str] | None = None) -> OnnxGraph:
    """A graph that multiplies its input by a weight, which is listed among the inputs as old files do."""
    weight = onnx.numpy_helper.from_array(np.array([factor], np.float32), "factor")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["images", "factor"], ["scaled"])],
        "scaled",
        [
            helper.make_tensor_value_info("images", element, ["batch", 3, 8, 8]),
            helper.make_tensor_value_info("factor", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("scaled", element, ["batch", 3, 8, 8])],
        [weight],
    )
    proto = helper.make_model(graph)
    helper.set_model_props(proto, metadata or {})
    return OnnxGraph("scaled.onnx", proto)


def test_inputs_are_what_the_caller_passes() -> None:
    graph = scaled()
    assert graph.inputs == (OnnxTensor("images", (None, 3, 8, 8), FLOAT32),)
    assert graph.outputs == (OnnxTensor("scaled", (None, 3, 8, 8), FLOAT32),)
    assert str(graph.inputs[0]) == "images float32 (?, 3, 8, 8)"


def test_metadata_is_read() -> None:
    assert scaled(metadata={"task": "detect"}).metadata == {"task": "detect"}
    assert scaled().metadata == {}


def test_digest_identifies_weights_and_metadata() -> None:
    assert scaled().digest == scaled().digest
    assert len({scaled(2.0).digest, scaled(3.0).digest, scaled(2.0, metadata={"task": "detect"}).digest}) == 3


@pytest.mark.parametrize("element", [TensorProto.STRING, TensorProto.COMPLEX64])
def test_elements_that_arrays_cannot_have_are_refused(element: int) -> None:
    with pytest.raises(ConfigurationError, match="'images' has elements of ONNX's type"):
        scaled(element=element)


def test_input_that_is_no_tensor_is_refused() -> None:
    proto = scaled().proto
    proto.graph.input[0].CopyFrom(helper.make_tensor_sequence_value_info("images", TensorProto.FLOAT, [1]))
    with pytest.raises(ConfigurationError, match="'images' is a sequence, not a tensor"):
        OnnxGraph("sequence.onnx", proto)
