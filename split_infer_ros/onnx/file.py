"""Reads ONNX files. Reading a file runs no code, and reads nothing outside the file's folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from split_infer_ros.errors import ConfigurationError, first_line
from split_infer_ros.onnx.constants import find_external, load_constants, structure_of
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import subgraphs
from split_infer_ros.onnx.unify import unify
from split_infer_ros.runtime.user_files import is_regular, read_regular

if TYPE_CHECKING:
    import onnx

MAX_FILE_BYTES = 2**31 - 1  # protobuf cannot read more
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")  # domains with operators that ONNX Runtime has
LOADERS = ("EPContext", "PyOp", "PythonOp")  # operators that load other files or run code


def read_onnx(path: Path) -> OnnxGraph:
    """Reads a model with its weights, and checks it. A damaged file can end the process: call ``inspect_files`` before.

    Weights may lie in other files beside the model. Functions that the file defines are inlined. ``unify`` removes
    differences between exporters.

    Args:
        path: the model's file.

    Raises:
        ConfigurationError: the file is missing, too large, damaged or no ONNX model. It is also raised if the model
            uses operators that no engine has, or if weights are not where the model says.
    """
    proto = _parse(path)
    import onnx.checker
    import onnx.inliner

    if not proto.graph.node or not proto.graph.output:
        raise ConfigurationError(f"{path} cannot be read as an ONNX file (it holds no graph); export it again.")
    try:
        proto.ClearField("training_info")  # holds graphs that no engine runs
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
        _check_operators(proto, path)
        load_constants(proto, path)
        unify(proto)
        with structure_of(proto) as structure:
            onnx.checker.check_model(structure)
    except ConfigurationError:
        raise
    except Exception as error:  # the checker's and the inliner's errors depend on the version
        raise ConfigurationError(f"{path} is no valid ONNX model ({first_line(error)}).") from error
    return OnnxGraph(path.name, proto)


def weights_beside(path: Path) -> dict[Path, int]:
    """Returns the files beside a model that hold its weights, and how many bytes the model takes from each.

    Reads none of these files.

    Args:
        path: the model's file.

    Raises:
        ConfigurationError: the model cannot be read, or weights are not where the model says.
    """
    return find_external(_parse(path), path)


def _parse(path: Path) -> onnx.ModelProto:
    """Reads a file as a protobuf message. Does not check its content."""
    try:
        import onnx
    except ImportError as error:
        raise ConfigurationError(
            f"{path} is an ONNX file, and the Python package onnx is not installed: pip install onnx onnxruntime."
        ) from error
    if not is_regular(path):
        raise ConfigurationError(f"There is no ONNX file {path}; model takes the path of a file that exists.")
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ConfigurationError(
            f"{path} has {size:,} bytes, and an ONNX file has at most {MAX_FILE_BYTES:,}; "
            "export the model with its weights in a file of their own."
        )
    try:
        return onnx.load_model_from_string(read_regular(path, MAX_FILE_BYTES))
    except Exception as error:  # protobuf's errors depend on its version
        raise ConfigurationError(
            f"{path} cannot be read as an ONNX file ({first_line(error)}). It is damaged, cut short or of another "
            "kind; copy or export it again."
        ) from error


def _check_operators(proto: onnx.ModelProto, path: Path) -> None:
    nodes = {(node.domain, node.op_type) for node in _nodes(proto.graph)}
    foreign = sorted(f"{domain}.{kind}" for domain, kind in nodes if domain not in DOMAINS or kind in LOADERS)
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
