"""Arranges a quantised graph so that it can be cut at the split points of the model in float32."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.onnx.nodes import copied, is_shape, replace_nodes, used_values

if TYPE_CHECKING:
    import onnx


def arrange(proto: onnx.ModelProto, crossings: Iterable[Sequence[str]]) -> None:
    """Orders a graph's nodes by split point, and gives each node its own quantisers.

    A quantiser is a pair of nodes that rounds a value to 8 bits and converts it back to float. If nodes on both sides
    of a split point shared a quantiser, the quantiser's result would cross there. In float32, it does not. OpenVINO
    joins equal quantisers again.

    Args:
        proto: the graph. It is changed in place, and nodes that no output needs are removed.
        crossings: for each split point in order, the names of the values that cross there.
    """
    nodes = _with_own_quantisers(proto.graph.node)
    producers = {str(name): index for index, node in enumerate(nodes) for name in node.output if name}
    order: list[int] = []
    placed: set[int] = set()
    outputs = [str(value.name) for value in proto.graph.output]
    for name in (*(name for names in crossings for name in names), *outputs):
        needed = sorted(_needed(name, nodes, producers, placed))
        placed.update(needed)
        order += needed
    replace_nodes(proto.graph, (nodes[index] for index in order))


def _needed(name: str, nodes: Sequence[onnx.NodeProto], producers: dict[str, int], placed: set[int]) -> set[int]:
    """Returns the indices of the nodes that a value needs, without those that are already placed."""
    found: set[int] = set()
    names = [name]
    while names:
        index = producers.get(names.pop())
        if index is not None and index not in placed and index not in found:
            found.add(index)
            names += used_values(nodes[index])
    return found


def _with_own_quantisers(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Returns the nodes. Copies of the quantisers whose results a node takes stand before the node."""
    arranged: list[onnx.NodeProto] = []
    pairs: dict[str, tuple[onnx.NodeProto, onnx.NodeProto]] = {}  # by result: a quantiser and its dequantiser
    producers: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        producers |= dict.fromkeys(map(str, node.output), node)
        quantiser = producers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if quantiser is not None and quantiser.op_type == "QuantizeLinear":
            pairs[str(node.output[0])] = (quantiser, node)
        own = copied(node)
        for index, name in enumerate(own.input):
            if name in pairs and is_shape(own):
                own.input[index] = pairs[name][0].input[0]  # quantising changes no shape
            elif name in pairs:
                copies = _copies(pairs[name], f"{own.name}/{index}")
                arranged += copies
                own.input[index] = copies[1].output[0]
        arranged.append(own)
    return arranged


def _copies(pair: tuple[onnx.NodeProto, onnx.NodeProto], place: str) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    """Returns copies of a quantiser and its dequantiser, named after the place where their result is used."""
    quantiser, back = map(copied, pair)
    quantiser.name, back.name = f"{place}/quantised", f"{place}/float"
    quantiser.output[0] = back.input[0] = quantiser.name
    back.output[0] = back.name
    return quantiser, back
