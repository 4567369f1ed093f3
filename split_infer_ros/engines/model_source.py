"""How an ONNX model is given to an engine: by its file, or as bytes unless it is larger than protobuf's limit."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.runtime.checked_files import read_checked

MAX_BYTES = 2**31 - 2**24  # protobuf serialises less than 2 GiB; the weights are nearly all of it


@contextmanager
def model_source(graph: OnnxGraph) -> Iterator[bytes | str]:
    """Yields the bytes of a model, or the path of a file that holds it until the context ends."""
    if graph.path is not None:
        yield str(graph.path)
        return
    content = _read_content(graph)
    if content is not None:
        yield content
        return
    weights = sum(len(tensor.raw_data) for tensor in graph.proto.graph.initializer)
    if weights < MAX_BYTES:
        yield graph.proto.SerializeToString()
        return
    import onnx

    with tempfile.TemporaryDirectory(prefix="split_infer_ros_") as folder:
        path = Path(folder, "model.onnx")
        copy = onnx.ModelProto()
        copy.CopyFrom(graph.proto)  # saving moves the weights of what is saved into the file
        onnx.save_model(copy, str(path), save_as_external_data=True, location="weights")
        del copy
        yield str(path)


def _read_content(graph: OnnxGraph) -> bytes | None:
    """Returns the serialised model if it was kept. A file that is not as it was written is removed."""
    if graph.content is None:
        return None
    with suppress(OSError):
        content = read_checked(graph.content)
        if content is not None:
            return bytes(content)
        graph.content.unlink()
    return None
