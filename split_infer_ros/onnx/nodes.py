"""Answers small questions about the nodes and constants of ONNX graphs, and adds nodes and constants."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

MAX_INTEGERS = 64  # elements; a larger constant is no shape and no bounds of a Slice


def is_shape(node: onnx.NodeProto) -> bool:
    """Returns whether a node is ONNX's operator ``Shape``, which gives the shape of a value."""
    return bool(node.op_type == "Shape") and has_plain_domain(node)


def has_plain_domain(node: onnx.NodeProto) -> bool:
    """Returns whether a node's operator is one of ONNX itself."""
    return node.domain in ("", "ai.onnx")


def used_values(node: onnx.NodeProto) -> list[str]:
    """Returns the names of the values that a node reads, including values that its subgraphs take from outside."""
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
    """Returns the names that a subgraph uses but does not define."""
    own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {name for node in graph.node for name in node.output}
    used = [name for node in graph.node for name in used_values(node)]
    return [name for name in (*used, *(str(value.name) for value in graph.output)) if name not in own]


def num_elements(tensor: onnx.TensorProto) -> int:
    """Returns how many elements a constant has."""
    return math.prod(map(int, tensor.dims))


def small_integers(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Returns the values of a graph's small constants, by name: int64 (n,) with at most ``MAX_INTEGERS`` elements."""
    import onnx

    tensors = {str(tensor.name): tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and has_plain_domain(node):
            tensors |= {str(node.output[0]): each.t for each in node.attribute if each.name == "value"}
    return {
        name: list(map(int, onnx.numpy_helper.to_array(tensor)))
        for name, tensor in tensors.items()
        if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1 and tensor.dims[0] <= MAX_INTEGERS
    }


def add_node(
    graph: onnx.GraphProto, operator: str, inputs: Iterable[str], output: str, **attributes: int | list[int]
) -> str:
    """Appends a node with one output. Returns the output's name, which is also the node's name."""
    import onnx

    graph.node.append(onnx.helper.make_node(operator, list(inputs), [output], name=output, **attributes))
    return output


def add_constant(graph: onnx.GraphProto, name: str, values: Sequence[int]) -> str:
    """Adds a constant int64 (n,) and returns its name."""
    import onnx

    graph.initializer.append(onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values))
    return name


def add_batch_size(graph: onnx.GraphProto, source: str, name: str) -> str:
    """Adds nodes that compute the length of the first dimension of ``source``, int64 (1,). Returns its name."""
    shape = add_node(graph, "Shape", [source], f"{name}/shape")
    return add_node(graph, "Gather", [shape, add_constant(graph, f"{name}/axis", [0])], name, axis=0)
