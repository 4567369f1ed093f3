"""Finds what a graph's values depend on, and which values are still needed at a place between two nodes."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import is_shape, used_values
from split_infer_ros.onnx.shapes import ValueShape

if TYPE_CHECKING:
    import onnx

_RANDOM_OPERATORS = (
    *("Bernoulli", "Multinomial"),
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
)


class Dependence(enum.Enum):
    """What a value depends on.

    - ``NOTHING``: the value is a constant. Each side of a split point has its own copy.
    - ``BATCH_SIZE``: the value depends only on the number of images. Each side of a split point computes it.
    - ``IMAGES``: the value depends on the images. It must cross a split point if the other side uses it.
    """

    NOTHING = "nothing"
    BATCH_SIZE = "batch size"
    IMAGES = "images"


class Dataflow:
    """The order in which a graph's values are made and used.

    Args:
        graph: the graph.
        shapes: shapes of the graph's values, by name.

    Attributes:
        nodes: the graph's nodes, in order.
        producers: the index of the node that makes a value, by the value's name. Inputs and weights have no producer.
        computing: the indices of the nodes with results that depend on images.
    """

    def __init__(self, graph: OnnxGraph, shapes: Mapping[str, ValueShape]) -> None:
        self._graph, self._shapes = graph, shapes
        self.nodes: Sequence[onnx.NodeProto] = list(graph.proto.graph.node)
        self.producers = {str(name): index for index, node in enumerate(self.nodes) for name in node.output if name}
        self._dependences = {tensor.name: Dependence.IMAGES for tensor in graph.inputs}
        for node in self.nodes:
            self._dependences |= dict.fromkeys(map(str, node.output), self._dependence_of(node))
        self.computing = [index for index, node in enumerate(self.nodes) if self._computes(node)]
        self._last_uses = {name: index for index in self.computing for name in used_values(self.nodes[index])}
        self._last_uses |= {tensor.name: len(self.nodes) for tensor in graph.outputs}

    def depends_on(self, name: str) -> Dependence:
        """Returns what a value depends on."""
        return self._dependences.get(name, Dependence.NOTHING)

    def live(self, position: int) -> list[str]:
        """Returns the names of the values that cross a place, in the order in which the graph computes them.

        Args:
            position: the number of nodes before the place. The graph's outputs cross the place behind the last node.
        """
        if position == len(self.nodes):
            return [tensor.name for tensor in self._graph.outputs]
        made = [tensor.name for tensor in self._graph.inputs]
        made += [str(name) for node in self.nodes[:position] for name in node.output]
        return [
            name
            for name in made
            if self.depends_on(name) is Dependence.IMAGES and self._last_uses.get(name, -1) >= position
        ]

    def _computes(self, node: onnx.NodeProto) -> bool:
        return any(self.depends_on(str(name)) is Dependence.IMAGES for name in node.output)

    def _dependence_of(self, node: onnx.NodeProto) -> Dependence:
        if node.op_type in _RANDOM_OPERATORS:  # two sides would draw different numbers
            return Dependence.IMAGES
        found = {self.depends_on(name) for name in used_values(node)}
        if Dependence.IMAGES in found:
            shape = self._shapes.get(node.input[0]) if is_shape(node) else None
            return Dependence.BATCH_SIZE if shape is not None and shape.is_known else Dependence.IMAGES
        return Dependence.BATCH_SIZE if Dependence.BATCH_SIZE in found else Dependence.NOTHING
