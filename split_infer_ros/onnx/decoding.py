"""Divides a graph behind its last layers: into the network up to there, and the decoding of the network's outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.layers import find_layers
from split_infer_ros.onnx.nodes import used_values
from split_infer_ros.onnx.parts import add_weights, new_part, without_weights

if TYPE_CHECKING:
    import onnx

# Operators that move values and compute nothing. They lose no precision.
MOVING = (
    *("Constant", "ConstantOfShape", "Shape", "Identity", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze"),
    *("Concat", "Split", "Slice", "Gather", "Expand", "Cast", "Pad"),
)


def divide(graph: OnnxGraph) -> tuple[OnnxGraph, OnnxGraph] | None:
    """Divides a graph into the part up to its last layers, and the part that decodes their outputs.

    Returns:
        Both parts. None if the operators behind the last layers only move values, so that nothing is decoded. Also None
        if the decoding takes an input of the graph, or a value of a type that cannot be inferred.
    """
    import onnx

    found, nodes = find_layers(graph.proto.graph), list(graph.proto.graph.node)
    decoding = [nodes[index] for index in found.decoding]
    if all(node.op_type in MOVING for node in decoding):
        return None
    later = set(found.decoding)
    network = [node for index, node in enumerate(nodes) if index not in later]
    made = {str(name) for node in network for name in node.output if name}
    results = [tensor.name for tensor in graph.outputs]
    wanted = dict.fromkeys([*(name for node in decoding for name in used_values(node)), *results])
    given = {tensor.name for tensor in graph.inputs}
    crossing = [name for name in wanted if name in made or name in given]
    if not crossing or not given.isdisjoint(crossing):
        return None
    inferred = onnx.shape_inference.infer_shapes(without_weights(graph.proto), data_prop=True).graph
    known = {str(value.name): value for value in (*inferred.value_info, *inferred.input, *inferred.output)}
    if any(name not in known or not known[name].type.tensor_type.elem_type for name in crossing):
        return None
    values = [known[name] for name in crossing]
    inputs = [value for value in graph.proto.graph.input if value.name in given]
    return (
        _part(graph, "the network of", network, inputs, values),
        _part(graph, "the decoding of", decoding, values, graph.proto.graph.output),
    )


def _part(
    whole: OnnxGraph,
    what: str,
    nodes: Iterable[onnx.NodeProto],
    inputs: Iterable[onnx.ValueInfoProto],
    outputs: Iterable[onnx.ValueInfoProto],
) -> OnnxGraph:
    """Returns a new graph of some nodes of a graph, with the weights that they need."""
    proto = new_part(whole.proto, f"{what} {whole.name}")
    proto.graph.input.extend(inputs)
    proto.graph.output.extend(outputs)
    results = {str(value.name) for value in proto.graph.output}
    for value in (value for value in proto.graph.input if value.name in results):  # inputs and outputs need other names
        proto.graph.node.add(op_type="Identity", input=[f"network/{value.name}"], output=[value.name])
        value.name = f"network/{value.name}"
    proto.graph.node.extend(nodes)
    add_weights(proto.graph, whole.proto.graph)
    return OnnxGraph(proto.graph.name, proto)
