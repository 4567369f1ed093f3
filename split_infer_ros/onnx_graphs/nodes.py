"""Small questions about the nodes and constants of ONNX graphs, and ways to add some."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def is_shape(node: onnx.NodeProto) -> bool:
    """Returns whether a node gives the shape of a value."""
    return bool(node.op_type == "Shape" and node.domain in ("", "ai.onnx"))


def used_values(node: onnx.NodeProto) -> list[str]:
    """Returns the names of the values that a node reads, with those that its subgraphs take from outside."""
    names = [str(name) for name in node.input if name]
    for subgraph in subgraphs(node):
        names += _captured_values(subgraph)
    return list(dict.fromkeys(names))


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yields the graphs that a node such as ``If`` or ``Loop`` runs."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _captured_values(graph: onnx.GraphProto) -> list[str]:
    """Returns the names that a subgraph uses and does not define."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in used_values(node)]
    return [name for name in (*used, *(str(value.name) for value in graph.output)) if name not in own]


def num_elements(tensor: onnx.TensorProto) -> int:
    """Returns how many elements a constant has."""
    return math.prod(map(int, tensor.dims))


def add_node(graph: onnx.GraphProto, operator: str, inputs: Iterable[str], output: str, **attributes: int) -> None:
    """Appends a node with one output, which gives it its name."""
    import onnx

    graph.node.append(onnx.helper.make_node(operator, list(inputs), [output], name=output, **attributes))


def add_constant(graph: onnx.GraphProto, name: str, values: list[int]) -> None:
    """Adds a constant int64 (n,)."""
    import onnx

    graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values))
