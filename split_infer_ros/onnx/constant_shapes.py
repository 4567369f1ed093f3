"""Replaces the values that a graph computes from shapes by constants, so that a converter meets fewer operators."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import copied, replace_nodes, used_values
from split_infer_ros.onnx.shapes import TWO_BATCHES, ValueShape, infer_with_values

if TYPE_CHECKING:
    import onnx


def with_constant_shapes(graph: OnnxGraph, image_shape: tuple[int, ...]) -> OnnxGraph:
    """Returns a graph for images of one size. Constants replace the values that the graph computes from shapes.

    If exactly one dimension of a Reshape's result is the batch, the Reshape gets a constant target with -1 there. Nodes
    that no output needs are left out.

    Args:
        graph: a graph that takes any number of images. It is not changed.
        image_shape: (C, H, W) of one image.
    """
    import onnx

    (first, values), (second, others) = (_computed_for(graph, (size, *image_shape)) for size in TWO_BATCHES)
    constants = {
        name: value for name, value in values.items() if name in others and np.array_equal(value, others[name])
    }
    proto = copied(graph.proto)
    for node in proto.graph.node:
        if node.op_type == "Reshape" and str(node.input[1]) in values and str(node.input[1]) not in constants:
            lengths = _joined_lengths(*(each.get(str(node.output[0])) for each in (first, second)))
            if lengths is not None:
                node.input[1] = target = f"{node.output[0]}/target"
                constants[target] = np.array(lengths, np.int64)
    _keep_needed(proto.graph, constants)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    return OnnxGraph(graph.name, proto)


def _keep_needed(graph: onnx.GraphProto, constants: Collection[str]) -> None:
    """Drops the nodes that no output needs, and those with constant results, in place.

    A converter of the graph then need not know their operators.
    """
    needed, kept = {str(each.name) for each in graph.output}, []
    for node in reversed(graph.node):
        is_constant = node.output and all(name in constants for name in node.output if name)
        if not is_constant and not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(used_values(node))
    replace_nodes(graph, reversed(kept))


def _joined_lengths(first: ValueShape | None, second: ValueShape | None) -> list[int] | None:
    """Returns the lengths of a value, with -1 for the batch; None unless exactly one dimension is the batch."""
    if first is None or second is None or not (first.is_known and second.is_known):
        return None
    pairs = list(zip(first.lengths, second.lengths, strict=True))
    lengths = [-1 if one != other or one is None else one for one, other in pairs]
    return lengths if lengths.count(-1) == 1 and 0 not in lengths else None


def _computed_for(
    graph: OnnxGraph, input_shape: tuple[int, ...]
) -> tuple[dict[str, ValueShape], dict[str, np.ndarray[Any, Any]]]:
    """Returns the shapes of all values for images of one shape, and all values that are computed from shapes."""
    found, values = infer_with_values(graph, input_shape)
    while values.compute({name: value.lengths for name, value in found.items()}):
        pass
    return found, values.computed()
