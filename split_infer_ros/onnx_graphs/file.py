"""Reads ONNX files. A file is data: reading it runs no code, and reads nothing outside the file's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx_graphs.graph import OnnxGraph
from split_infer_ros.onnx_graphs.nodes import num_elements, subgraphs

if TYPE_CHECKING:
    import onnx

MAX_FILE_BYTES = 2**31 - 1  # protobuf reads no more
MAX_WEIGHT_BYTES = 2**34  # in all files beside the model
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # whose operators ONNX Runtime has


def read_onnx(path: Path) -> OnnxGraph:
    """Reads a model with its weights, and checks it.

    Weights may lie in other files beside it. Functions that the file defines are inlined.

    Args:
        path: of the file.

    Raises:
        ConfigurationError: the file is missing, too large, damaged or no ONNX model. It is also raised if the model
            uses operators that no engine has, or if weights are not where it says.
    """
    try:
        import onnx
        import onnx.checker
        import onnx.inliner
    except ImportError as error:
        raise ConfigurationError(
            f"{path} is an ONNX file, and the Python package onnx is not installed: "
            "pip install 'split_infer_ros[onnxruntime]'."
        ) from error
    if not path.is_file():
        raise ConfigurationError(f"There is no ONNX file {path}; model takes the path of a file that exists.")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"{path} has {size:,} bytes, and an ONNX file has at most {MAX_FILE_BYTES:,}; "
            "export the model with its weights in a file of their own."
        )
    try:
        proto = onnx.load_model_from_string(path.read_bytes())
    except Exception as error:  # protobuf's errors depend on its version
        raise ConfigurationError(
            f"{path} cannot be read as an ONNX file ({_reason(error)}). It is damaged, cut short or of another kind; "
            "copy or export it again."
        ) from error
    if not proto.graph.node or not proto.graph.output:
        raise ConfigurationError(f"{path} cannot be read as an ONNX file (it holds no graph); export it again.")
    _load_weights(proto, path)
    try:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        _check_operators(proto, path)
        onnx.checker.check_model(proto if size < MAX_FILE_BYTES // 2 else str(path))
    except ConfigurationError:
        raise
    except Exception as error:  # the checker's and the inliner's errors depend on the version
        raise ConfigurationError(f"{path} is no valid ONNX model ({_reason(error)}).") from error
    return OnnxGraph(path.name, proto)


def _load_weights(proto: onnx.ModelProto, path: Path) -> None:
    """Reads the weights that lie in other files into the model."""
    import onnx

    budget = MAX_WEIGHT_BYTES
    for tensor in _constants(proto.graph):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        tensor.raw_data = _read_external(tensor, path, budget)
        budget -= len(tensor.raw_data)
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.ClearField("external_data")


def _read_external(tensor: onnx.TensorProto, path: Path, budget: int) -> bytes:
    """Returns the bytes of a constant from the file that the model names."""
    import onnx

    facts = {entry.key: entry.value for entry in tensor.external_data}
    location, folder = facts.get("location", ""), path.resolve().parent
    file = (folder / location).resolve()
    if not location or Path(location).is_absolute() or folder not in file.parents:
        raise ConfigurationError(
            f"{path} takes the weight '{tensor.name}' from '{location}', which is not in its folder {folder}; "
            "files of weights lie beside the model."
        )
    if not file.is_file():
        raise ConfigurationError(f"{path} takes the weight '{tensor.name}' from {file}, and there is no such file.")
    try:
        bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
        offset = int(facts.get("offset", 0))
        length = int(facts.get("length", -(-num_elements(tensor) * bits // 8)))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{path} is damaged: where '{tensor.name}' lies is unreadable ({error}).") from error
    if offset < 0 or length < 0 or offset + length > file.stat().st_size:
        raise ConfigurationError(
            f"{path} takes the weight '{tensor.name}' from bytes {offset} to {offset + length} of {file}, which has "
            f"{file.stat().st_size}: the two files are not of one model."
        )
    if length > budget:
        raise ConfigurationError(f"{path} has more than {MAX_WEIGHT_BYTES:,} bytes of weights, which is the limit.")
    with file.open("rb") as stream:
        stream.seek(offset)
        data: bytes = stream.read(length)
    return data


def _constants(graph: onnx.GraphProto) -> Iterator[Any]:
    """Yields every constant of a graph, with those in its nodes and their subgraphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for subgraph in subgraphs(node):
            yield from _constants(subgraph)


def _check_operators(proto: onnx.ModelProto, path: Path) -> None:
    foreign = sorted({f"{node.domain}.{node.op_type}" for node in _nodes(proto.graph) if node.domain not in DOMAINS})
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ConfigurationError(
            f"{path} uses the operators {', '.join(foreign[:3])}{more}, which no engine has; "
            f"operators of these domains are known: {', '.join(DOMAINS[1:])}."
        )


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for subgraph in subgraphs(node):
            yield from _nodes(subgraph)


def _reason(error: Exception) -> str:
    """Returns the first line of an error's message, which can be very long."""
    line = next(filter(None, (line.strip() for line in str(error).splitlines())), type(error).__name__)
    return line[:200]
