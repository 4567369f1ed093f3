"""Gives an ONNX model to an engine: as bytes, or as a file if the model has one or is too large for protobuf."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import copied, num_elements

MAX_BYTES = 2**31 - 2**24  # of weights; protobuf serialises less than 2 GiB, and a model is mostly weights


def num_weight_bytes(graph: OnnxGraph) -> int:
    """Returns the size in bytes of the weights that a graph itself holds, not those in a separate file."""
    return sum(len(tensor.raw_data) or tensor.ByteSize() for tensor in graph.proto.graph.initializer)


def approximate_weight_bytes(graph: OnnxGraph) -> int:
    """Returns about how many bytes the weights of a graph have. The size of a file with its content is enough."""
    if graph.content is not None:
        with suppress(OSError):
            return graph.content.stat().st_size
    if graph.path is None:
        return num_weight_bytes(graph)
    return sum(FLOAT32.itemsize * num_elements(tensor) for tensor in graph.proto.graph.initializer)


@contextmanager
def model_source(graph: OnnxGraph) -> Iterator[bytes | str]:
    """Yields the bytes of a model, or the path of a file that holds it until the context ends."""
    if graph.path is not None:
        yield str(graph.path)
        return
    content = graph.read_content()
    if content is not None:
        yield content
        return
    if num_weight_bytes(graph) < MAX_BYTES:
        yield graph.proto.SerializeToString()
        return
    import onnx

    with tempfile.TemporaryDirectory(prefix="split_infer_ros_") as folder:
        path = Path(folder, "model.onnx")
        # Saving moves the weights out of the saved model, so a copy is saved.
        onnx.save_model(copied(graph.proto), str(path), save_as_external_data=True, location="weights")
        yield str(path)
