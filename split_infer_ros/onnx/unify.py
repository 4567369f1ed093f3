"""Removes differences between exporters from a model, so that no other module need know them.

Paddle writes every weight as a node ``Constant``. Converters to float16 append nodes at the end of a graph although
nodes at its beginning need them. Some exporters leave out the shapes of outputs.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from split_infer_ros.onnx.nodes import copied, has_plain_domain, replace_nodes, used_values
from split_infer_ros.onnx.shapes import infer_outputs

if TYPE_CHECKING:
    import onnx

_VALUES = {  # attributes in which a Constant may hold numbers, and the numbers' types
    "value_float": "FLOAT",
    "value_floats": "FLOAT",
    "value_int": "INT64",
    "value_ints": "INT64",
}


def unify(proto: onnx.ModelProto) -> None:
    """Changes a model that was just read, in place. The model computes the same as before.

    - Nodes ``Constant`` become weights, unless their results are outputs of the graph.
    - Each node moves behind the nodes that compute its inputs. A graph with a cycle stays as it is: ONNX's checker
      refuses it later.
    - Outputs without a shape get the inferred shape, as far as it is known.
    """
    _make_weights(proto.graph)
    _sort_nodes(proto.graph)
    if not all(output.type.tensor_type.HasField("shape") for output in proto.graph.output):
        infer_outputs(proto)


def _make_weights(graph: onnx.GraphProto) -> None:
    outputs = {str(output.name) for output in graph.output}
    made = [None if outputs.intersection(node.output) else _constant(node) for node in graph.node]
    graph.initializer.extend(tensor for tensor in made if tensor is not None)
    if any(tensor is not None for tensor in made):
        replace_nodes(graph, [node for node, tensor in zip(graph.node, made, strict=True) if tensor is None])


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Returns a node's constant, named like the node's result; None if the node has no numeric, dense constant."""
    import onnx

    if node.op_type != "Constant" or not has_plain_domain(node) or len(node.output) != 1 or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.name == "value":
        tensor = copied(attribute.t)
        tensor.name = node.output[0]
        return tensor
    if attribute.name not in _VALUES:  # texts, or a sparse tensor
        return None
    value = onnx.helper.get_attribute_value(attribute)
    dimensions = [len(value)] if attribute.name.endswith("s") else []
    kind = onnx.TensorProto.DataType.Value(_VALUES[attribute.name])
    return onnx.helper.make_tensor(node.output[0], kind, dimensions, value if dimensions else [value])


def _sort_nodes(graph: onnx.GraphProto) -> None:
    nodes = list(graph.node)
    producers = {str(name): index for index, node in enumerate(nodes) for name in node.output if name}
    sources = {
        index: [producers[name] for name in used_values(node) if name in producers] for index, node in enumerate(nodes)
    }
    if all(source < index for index, before in sources.items() for source in before):
        return
    try:
        order = list(TopologicalSorter(sources).static_order())
    except CycleError:
        return
    replace_nodes(graph, [nodes[index] for index in order])
