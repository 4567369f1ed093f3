"""A graph with the shapes of its values and its dataflow, from which parts can be cut."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.onnx.batch import with_batch_of_one
from split_infer_ros.onnx.cut import Cutter
from split_infer_ros.onnx.dataflow import Dataflow
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.shapes import ValueShape
from split_infer_ros.onnx.stored_shapes import stored_shapes


@dataclass(frozen=True, slots=True)
class PreparedGraph:
    """A graph for images of one size, with its shapes and its dataflow.

    Attributes:
        graph: takes any number of images, or a fixed one.
        shapes: the shapes of the graph's values.
        dataflow: the graph's dataflow.
        note: why it takes a fixed number of images, in a sentence; empty if it takes any.
        is_settled: whether the next start prepares the same graph. If a comparison lacked memory, it is made again
            then.
    """

    graph: OnnxGraph
    shapes: dict[str, ValueShape]
    dataflow: Dataflow
    note: str = ""
    is_settled: bool = True

    @classmethod
    def of(cls, graph: OnnxGraph, image_shape: tuple[int, ...], note: str = "") -> PreparedGraph:
        """Infers the shapes and the dataflow of a graph."""
        shapes = stored_shapes(graph, image_shape)
        return cls(graph, shapes, Dataflow(graph, shapes), note)

    @property
    def cutter(self) -> Cutter:
        """Cuts parts out of the graph."""
        return Cutter(self.graph, self.dataflow, self.shapes)

    def for_one_image(self) -> PreparedGraph:
        """Returns the same graph for one image at a time. It keeps the shapes for any number of images."""
        graph = with_batch_of_one(self.graph)
        return PreparedGraph(graph, self.shapes, Dataflow(graph, self.shapes))

    def whole(self) -> OnnxGraph:
        """Returns the whole graph. Its inputs and outputs have the shapes for these images."""
        return self.cutter.cut(self.graph.name, 0, len(self.dataflow.nodes))
