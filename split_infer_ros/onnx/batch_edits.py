"""Edits that make single nodes fit any number of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.onnx.nodes import add_batch_size, add_constant, add_node

if TYPE_CHECKING:
    import onnx

Edit = Callable[["onnx.GraphProto", "onnx.NodeProto"], None]
"""Takes a graph and a node that is not in it yet. Changes the node, and adds what the node then needs to the graph."""

_LAST = 2**63 - 1  # as an end of a Slice: up to the last element
_PREFIX = "split_infer_ros/batch"  # begins the names of values that an edit adds


def retarget(graph: onnx.GraphProto, node: onnx.NodeProto, *, target: Sequence[int]) -> None:
    """Gives a Reshape the shape ``target`` as its target."""
    node.input[1] = add_constant(graph, f"{_PREFIX}/target/{node.output[0]}", target)


def extend_slice(graph: onnx.GraphProto, node: onnx.NodeProto, *, ends: Sequence[int], place: int) -> None:
    """Makes a Slice take all images. ``ends`` are its ends so far, and ``ends[place]`` is the end of the batch."""
    ends = [_LAST if each == place else end for each, end in enumerate(ends)]
    node.input[2] = add_constant(graph, f"{_PREFIX}/ends/{node.output[0]}", ends)


def set_resized(graph: onnx.GraphProto, node: onnx.NodeProto, *, lengths: Sequence[int]) -> None:
    """Makes a Resize keep the number of images. ``lengths`` are the lengths of its result's other dimensions."""
    node.input[3] = _add_shape(graph, node, str(node.input[0]), lengths)


def expand_by_one(graph: onnx.GraphProto, node: onnx.NodeProto, *, lengths: Sequence[int]) -> None:
    """Makes an Expand keep the number of images, and expand all other dimensions to ``lengths``."""
    node.input[1] = add_constant(graph, f"{_PREFIX}/expanded/{node.output[0]}", [1, *lengths])


def take_first_rows(graph: onnx.GraphProto, node: onnx.NodeProto, *, places: Sequence[int]) -> None:
    """Replaces constant inputs that have a row for each image by their first row.

    The operator broadcasts the row to all images. ``places`` are the indices of these inputs.
    """
    for place in places:
        node.input[place] = _first_row(graph, node, place)


def repeat_inputs(
    graph: onnx.GraphProto, node: onnx.NodeProto, *, source: str, places: Sequence[int], rank: int, are_single: bool
) -> None:
    """Repeats the first row of some inputs of a Concat, once for each image of ``source``.

    Args:
        graph: gets the added nodes.
        node: the Concat.
        source: name of an input. Its first dimension is the batch.
        places: indices of the inputs to repeat.
        rank: number of dimensions of every input.
        are_single: whether the inputs to repeat have only one row.
    """
    shape = _add_shape(graph, node, source, [1] * (rank - 1))
    for place in places:
        name = f"{_PREFIX}/repeated/{place}/{node.output[0]}"
        row = str(node.input[place]) if are_single else _first_row(graph, node, place)
        node.input[place] = add_node(graph, "Expand", [row, shape], name)


def _first_row(graph: onnx.GraphProto, node: onnx.NodeProto, place: int) -> str:
    """Adds nodes that take the first row (1, ...) of an input. Returns the row's name."""
    name = f"{_PREFIX}/first/{place}/{node.output[0]}"
    index = add_constant(graph, f"{name}/index", [0])
    return add_node(graph, "Gather", [str(node.input[place]), index], name, axis=0)


def _add_shape(graph: onnx.GraphProto, node: onnx.NodeProto, source: str, lengths: Sequence[int]) -> str:
    """Adds nodes that compute the shape (N, *lengths); N is the number of images in ``source``. Returns its name."""
    name = f"{_PREFIX}/shape/{node.output[0]}"
    batch_size = add_batch_size(graph, source, f"{name}/images")
    return add_node(graph, "Concat", [batch_size, add_constant(graph, f"{name}/lengths", lengths)], name, axis=0)
