"""Rewrites a graph for a fixed number of images, so that it takes batches of any size.

Exporters fix the batch to 1 by default, or to a number that the user gives. They write this number into constants, such
as the target of a Reshape. This module infers shapes for this number of images and for twice as many. The difference
shows which dimension of each value is the batch. Then it rewrites the constants. A graph that picks the first image, or
holds the number in other places, may still give wrong results for other batch sizes. So the caller compares results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from split_infer_ros.onnx.batch_edits import (
    Edit,
    expand_by_one,
    extend_slice,
    repeat_inputs,
    retarget,
    set_resized,
    take_first_rows,
)
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import copied, has_plain_domain, small_integers, used_values
from split_infer_ros.onnx.shapes import BATCH, ValueShape, infer_for

if TYPE_CHECKING:
    import onnx

MAX_ROUNDS = 40  # rounds of inference; a graph that needs more is not rewritten

_BROADCASTING = ("Add", "Sub", "Mul", "Div", "Pow", "Where", "Min", "Max", "Less", "Greater", "Equal", "And", "Or")

Shapes = Mapping[str, ValueShape]


def with_symbolic_batch(graph: OnnxGraph, image_shape: tuple[int, ...]) -> OnnxGraph | None:
    """Returns a graph that takes any number of images, or None if its constants cannot be rewritten.

    The caller must check that the results are right.

    Args:
        graph: a graph that takes a fixed number of images at a time. It is not changed.
        image_shape: (C, H, W) of one image.
    """
    rewriter = _Rewriter(graph, image_shape)
    for _ in range(MAX_ROUNDS):
        if not rewriter.improve():
            return rewriter.result()
    return None


def with_batch_of_one(graph: OnnxGraph) -> OnnxGraph:
    """Returns a copy of a graph that takes one image at a time."""
    proto = copied(graph.proto)
    _batch_of(proto, graph).dim_value = 1
    return OnnxGraph(graph.name, proto)


class _Rewriter:
    """Rewrites constants, round by round, until shapes for twice as many images follow from them."""

    def __init__(self, graph: OnnxGraph, image_shape: tuple[int, ...]) -> None:
        self._name, self._image_shape = graph.name, image_shape
        self._count = graph.inputs[0].shape[0] or 1  # images at a time
        self._fixed = infer_for(graph, (self._count, *image_shape))  # shapes for this many images
        self._integers = small_integers(graph.proto.graph)
        self._proto = copied(graph.proto)
        self._proto.graph.ClearField("value_info")
        _batch_of(self._proto, graph).dim_param = BATCH
        for output in self._proto.graph.output:
            output.type.tensor_type.ClearField("shape")
        self._nodes = list(graph.proto.graph.node)
        self._dependent = {graph.inputs[0].name}  # names of values that depend on the images
        for node in self._nodes:
            if not self._dependent.isdisjoint(used_values(node)):
                self._dependent |= set(map(str, node.output))
        # By index of a Reshape: the axis of its result that is the batch. The first guess is axis 0.
        self._batch_axes = {index: 0 for index, node in enumerate(self._nodes) if self._has_fixed_target(node)}
        self._edits: dict[int, Edit] = {}  # by index, for nodes of other kinds

    def improve(self) -> bool:
        """Corrects nodes that are wrong for twice as many images. Returns whether any was wrong."""
        doubled = infer_for(self.result(), (2 * self._count, *self._image_shape))
        changed: set[str] = set()  # values with outdated shapes in ``doubled``
        for index, node in enumerate(self._nodes):
            is_stale = not changed.isdisjoint(used_values(node))
            if not is_stale and has_plain_domain(node):
                is_stale = self._correct_reshape(index, node, doubled) or self._correct_other(index, node, doubled)
            if is_stale:
                changed.update(map(str, node.output))
        return bool(changed)

    def result(self) -> OnnxGraph:
        """Returns the graph with all rewriting that was done so far."""
        proto = copied(self._proto)
        proto.graph.ClearField("node")
        for index, node in enumerate(self._nodes):
            edited = copied(node)
            if index in self._batch_axes:
                target = list(self._lengths(self._fixed, str(node.output[0])))
                target[self._batch_axes[index]] = -1
                retarget(proto.graph, edited, target=target)
            elif index in self._edits:
                self._edits[index](proto.graph, edited)
            proto.graph.node.append(edited)
        return OnnxGraph(self._name, proto)

    def _has_fixed_target(self, node: onnx.NodeProto) -> bool:
        """Returns whether a node is a Reshape with data that depends on images, and a target that does not."""
        if node.op_type != "Reshape" or not has_plain_domain(node) or len(node.input) < 2:
            return False
        target = self._lengths(self._fixed, str(node.output[0]))
        depends = [str(name) in self._dependent for name in node.input]
        return depends == [True, False] and bool(target) and 0 not in target

    def _correct_reshape(self, index: int, node: onnx.NodeProto, doubled: Shapes) -> bool:
        """Corrects the noted batch axis of a Reshape's result. Returns whether it was wrong."""
        if index not in self._batch_axes:
            return False
        axis = self._batch_axis(str(node.input[0]), doubled)
        before = -1 if axis is None else math.prod(self._lengths(self._fixed, str(node.input[0]))[:axis])
        target = self._lengths(self._fixed, str(node.output[0]))
        right = next((place for place in range(len(target)) if math.prod(target[:place]) == before), None)
        is_wrong = self._batch_axes[index] != right
        if right is None:  # the input has no batch, or images would be mixed
            del self._batch_axes[index]
        else:
            self._batch_axes[index] = right
        return is_wrong

    def _correct_other(self, index: int, node: onnx.NodeProto, doubled: Shapes) -> bool:
        """Plans an edit that makes a node of another kind fit several images. Returns whether it needs one."""
        if index in self._edits or not node.input:
            return False
        names = list(map(str, node.input))
        axes = [self._batch_axis(name, doubled) for name in names]
        lengths = self._lengths(self._fixed, str(node.output[0]))
        repeated = [place for place, name in enumerate(names) if self._lacks_batch(name, doubled)]
        if node.op_type == "Concat" and 0 in axes:
            is_along_batch = any(each.name == "axis" and each.i == 0 for each in node.attribute)
            if repeated and lengths and not is_along_batch:
                source, rank = names[axes.index(0)], len(lengths)
                self._edits[index] = partial(
                    repeat_inputs, source=source, places=repeated, rank=rank, are_single=self._count == 1
                )
        elif node.op_type == "Expand" and axes[0] == 0 and names[1] not in self._dependent:
            if self._count > 1 and lengths[:1] == (self._count,):
                self._edits[index] = partial(expand_by_one, lengths=lengths[1:])
        elif node.op_type in _BROADCASTING and 0 in axes:
            places = [place for place in repeated if len(self._lengths(self._fixed, names[place])) == len(lengths)]
            if places and self._count > 1:
                self._edits[index] = partial(take_first_rows, places=places)
        elif node.op_type == "Resize" and axes[0] == 0 and len(names) > 3 and names[3] not in self._dependent:
            if len(lengths) == len(self._lengths(self._fixed, names[0])):
                self._edits[index] = partial(set_resized, lengths=list(lengths[1:]))
        elif node.op_type == "Slice" and axes[0] == 0:
            values = [self._integers.get(name) for name in names[1:]]
            if len(values) > 2 and None not in values:
                self._edits |= _slice_edit(index, [value for value in values if value is not None], self._count)
        return index in self._edits

    def _batch_axis(self, name: str, doubled: Shapes) -> int | None:
        """Returns the dimension of a value that doubles with the images; None unless it alone changes."""
        first, second = self._lengths(self._fixed, name), self._lengths(doubled, name)
        if len(first) != len(second):
            return None
        different = [axis for axis, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]]
        is_doubled = len(different) == 1 and second[different[0]] == 2 * first[different[0]]
        return different[0] if is_doubled else None

    def _lacks_batch(self, name: str, doubled: Shapes) -> bool:
        """Returns whether a value's first dimension is the fixed number of images, even for twice as many images.

        Unless the number is 1, only a constant counts. The rewriting assumes that all its rows equal the first one.
        """
        expected = (self._count,)
        is_same = self._lengths(self._fixed, name)[:1] == self._lengths(doubled, name)[:1] == expected
        return is_same and (self._count == 1 or name not in self._dependent)

    def _lengths(self, shapes: Shapes, name: str) -> tuple[int, ...]:
        """Returns a value's shape; empty unless all of it is known."""
        known = shapes.get(name)
        lengths = known.lengths if known else ()
        return () if None in lengths else tuple(length for length in lengths if length is not None)


def _batch_of(proto: onnx.ModelProto, graph: OnnxGraph) -> Any:
    """Returns the first dimension of the images in a copy of a graph's model."""
    value = next(each for each in proto.graph.input if each.name == graph.inputs[0].name)
    return value.type.tensor_type.shape.dim[0]


def _slice_edit(index: int, values: list[list[int]], count: int) -> dict[int, Edit]:
    """Returns the edit of a Slice that takes all ``count`` images along the first axis; no edit for another Slice."""
    starts, ends, axes, *steps = values
    if 0 not in axes:
        return {}
    place = axes.index(0)
    takes_all = starts[place] == 0 and ends[place] == count and (not steps or steps[0][place] == 1)
    return {index: partial(extend_slice, ends=ends, place=place)} if takes_all else {}
