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
        note: a sentence that says why the graph takes a fixed number of images; empty if it takes any number.
        is_settled: whether the next start prepares the same graph. It is False if results could not be compared for
            lack of memory: the next start then compares them again.
    """

    graph: OnnxGraph
    shapes: dict[str, ValueShape]
    dataflow: Dataflow
    note: str = ""
    is_settled: bool = True

    @classmethod
    def of(cls, graph: OnnxGraph, image_shape: tuple[int, ...], note: str = "") -> PreparedGraph:
        """Infers the shapes and the dataflow of a graph.

        Args:
            graph: the graph.
            image_shape: (C, H, W) of an image.
            note: as in the attributes of the class.
        """
        shapes = stored_shapes(graph, image_shape)
        return cls(graph, shapes, Dataflow(graph, shapes), note)

    @property
    def cutter(self) -> Cutter:
        """A new ``Cutter``, which cuts parts out of the graph."""
        return Cutter(self.graph, self.dataflow, self.shapes)

    def for_one_image(self) -> PreparedGraph:
        """Returns a copy of the graph that takes one image at a time. It keeps the shapes for any number of images."""
        graph = with_batch_of_one(self.graph)
        return PreparedGraph(graph, self.shapes, Dataflow(graph, self.shapes))

    def whole(self) -> OnnxGraph:
        """Returns the whole graph as a part. Its inputs and outputs are declared with the inferred shapes."""
        return self.cutter.cut(self.graph.name, 0, len(self.dataflow.nodes))
