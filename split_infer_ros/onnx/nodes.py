"""Answers small questions about models of ONNX, their nodes and constants. Copies, adds and renames these."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import onnx

MAX_INTEGERS = 64  # elements; a larger constant is no shape and no bounds of a Slice

PLAIN_DOMAINS = ("", "ai.onnx")  # both name ONNX's own operators

Message = TypeVar("Message")


def is_shape(node: onnx.NodeProto) -> bool:
    """Returns whether a node is ONNX's operator ``Shape``, which gives the shape of a value."""
    return bool(node.op_type == "Shape") and has_plain_domain(node)


def has_plain_domain(node: onnx.NodeProto) -> bool:
    """Returns whether a node's operator is one of ONNX itself."""
    return node.domain in PLAIN_DOMAINS


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


def opset_of(proto: onnx.ModelProto) -> int:
    """Returns the version of ONNX's own operators in a model."""
    return max((int(each.version) for each in proto.opset_import if each.domain in PLAIN_DOMAINS), default=1)


def shape_span(node: onnx.NodeProto) -> slice:
    """Returns which dimensions of its input a node ``Shape`` gives."""
    span = {attribute.name: int(attribute.i) for attribute in node.attribute}
    return slice(span.get("start"), span.get("end"))


def constants_of(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """Returns a graph's constants by name: its weights, and the tensors in its nodes ``Constant``."""
    tensors = {str(tensor.name): tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and has_plain_domain(node):
            tensors |= {str(node.output[0]): each.t for each in node.attribute if each.name == "value"}
    return tensors


def small_integers(graph: onnx.GraphProto) -> dict[str, list[int]]:
    """Returns the values of a graph's small constants, by name: int64 (n,) with at most ``MAX_INTEGERS`` elements."""
    import onnx

    return {
        name: list(map(int, onnx.numpy_helper.to_array(tensor)))
        for name, tensor in constants_of(graph).items()
        if tensor.data_type == onnx.TensorProto.INT64 and len(tensor.dims) == 1 and tensor.dims[0] <= MAX_INTEGERS
    }


def copied(message: Message) -> Message:
    """Returns a copy of a model, a node or another message of ONNX."""
    made = type(message)()
    made.CopyFrom(message)  # type: ignore[attr-defined]
    return made


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Gives a graph copies of these nodes in place of its own ones, which may be among them."""
    kept = [copied(node) for node in nodes]
    graph.ClearField("node")
    graph.node.extend(kept)


def rename_values(nodes: Iterable[onnx.NodeProto], names: Mapping[str, str]) -> None:
    """Renames the values that nodes read and make, in place and in subgraphs too.

    Args:
        nodes: the nodes to change.
        names: new names by old name. Other values keep their names.
    """
    for node in nodes:
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                values[index] = names.get(name, name)
        for subgraph in subgraphs(node):
            rename_values(subgraph.node, names)
            rename_declared((*subgraph.initializer, *subgraph.value_info, *subgraph.output), names)


def rename_declared(declarations: Iterable[Any], names: Mapping[str, str]) -> None:
    """Renames constants and declarations of values, in place; ``names`` as for ``rename_values``."""
    for each in declarations:
        each.name = names.get(each.name, each.name)


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
