"""Cuts parts out of a graph: it makes a graph of the nodes between two places."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.onnx.dataflow import Dataflow, Dependence
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import add_batch_size, add_constant, add_node, is_shape, shape_span, used_values
from split_infer_ros.onnx.parts import add_weights, new_part
from split_infer_ros.onnx.shapes import BATCH, Dimension, ValueShape

if TYPE_CHECKING:
    import onnx

_BATCH_SIZE = "split_infer_ros/batch_size"  # name of the number of images in a part, int64 (1,)
_LENGTH = "split_infer_ros/length"  # begins the names of other lengths in a part, int64 (1,)
_PASSED = "split_infer_ros/passed"  # begins the names of outputs that are inputs as well


class Cutter:
    """Cuts parts out of one graph.

    Args:
        graph: the whole graph. It is not changed, and parts get copies of their weights.
        dataflow: the graph's dataflow.
        shapes: shapes of the graph's values, by name.
    """

    def __init__(self, graph: OnnxGraph, dataflow: Dataflow, shapes: Mapping[str, ValueShape]) -> None:
        self._graph, self._dataflow, self._shapes = graph, dataflow, shapes
        self._fixed_batch = graph.inputs[0].shape[0]

    def cut(self, name: str, first: int, last: int) -> OnnxGraph:
        """Returns the part between two places.

        The part's inputs are the values that cross the first place, in order. Its outputs are the values that cross the
        last place. It has the nodes that its outputs need. A value that crosses both places gets another name as an
        output.

        Args:
            name: the part's name, for messages.
            first, last: the number of the graph's nodes before each place.
        """
        return self._cut(name, self._dataflow.live(first), self._dataflow.live(last))

    def values(self, name: str, outputs: Sequence[str]) -> OnnxGraph:
        """Returns the part that computes the values ``outputs`` from the images. Each value is an output."""
        return self._cut(name, self._dataflow.live(0), outputs)

    def _cut(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> OnnxGraph:
        part = new_part(self._graph.proto, name)
        part.graph.input.extend(self._declared(source, source) for source in inputs)
        for node in self._nodes_between(inputs, outputs):
            if self._is_known_shape(node):
                self._add_shape(part.graph, node, inputs[0])
            else:
                part.graph.node.append(node)
        for source in outputs:
            new_name = f"{_PASSED}/{source}" if source in inputs else source
            if new_name != source:
                part.graph.node.add(op_type="Identity", input=[source], output=[new_name])
            part.graph.output.append(self._declared(source, new_name))
        add_weights(part.graph, self._graph.proto.graph)
        return OnnxGraph(name, part)

    def weights_of(self, first: int, last: int) -> list[str]:
        """Returns the names of the weights in the part between two places, without sparse weights.

        Args:
            first, last: the number of the graph's nodes before each place.
        """
        nodes = self._nodes_between(self._dataflow.live(first), self._dataflow.live(last))
        used = {name for node in nodes for name in used_values(node)}
        return [str(tensor.name) for tensor in self._graph.proto.graph.initializer if tensor.name in used]

    def _nodes_between(self, inputs: Iterable[str], outputs: Iterable[str]) -> list[onnx.NodeProto]:
        """Returns the nodes that compute the outputs from the inputs, in order."""
        given, found = set(inputs), []
        needed = set(outputs) - given
        for node in reversed(self._dataflow.nodes):
            if not needed.isdisjoint(node.output):
                found.append(node)
                needed |= set() if self._is_known_shape(node) else set(used_values(node)) - given
        return found[::-1]

    def _is_known_shape(self, node: onnx.NodeProto) -> bool:
        """Returns whether a node gives a shape in which only the batch size is open."""
        return is_shape(node) and self._dataflow.depends_on(str(node.output[0])) is Dependence.BATCH_SIZE

    def _add_shape(self, part: onnx.GraphProto, node: onnx.NodeProto, images: str) -> None:
        """Adds nodes that give the same known shape as ``node``. They take the batch size from the value ``images``."""
        dimensions = self._shapes[str(node.input[0])].dimensions[shape_span(node)]
        pieces = [self._dimension(part, dimension, images) for dimension in dimensions]
        if pieces:
            add_node(part, "Concat", pieces, str(node.output[0]), axis=0)
        else:
            add_constant(part, str(node.output[0]), [])

    def _dimension(self, part: onnx.GraphProto, dimension: Dimension, images: str) -> str:
        """Returns the name of a value int64 (1,) that holds a dimension. Adds the value if the part lacks it."""
        names = {str(name) for node in part.node for name in node.output} | {
            str(each.name) for each in part.initializer
        }
        if isinstance(dimension, int):
            name = f"{_LENGTH}/{dimension}"
            if name not in names:
                add_constant(part, name, [dimension])
            return name
        if _BATCH_SIZE not in names:
            add_batch_size(part, images, _BATCH_SIZE)
        return _BATCH_SIZE

    def _declared(self, source: str, name: str) -> onnx.ValueInfoProto:
        """Declares an input or output of a part. It has the type and shape of the whole graph's value ``source``."""
        import onnx

        whole = self._graph.proto.graph
        declared = {str(value.name): value for value in (*whole.input, *whole.output)}
        known = self._shapes.get(source)
        if known is None:
            kind = declared[source].type.tensor_type.elem_type
            return onnx.helper.make_tensor_value_info(name, kind, None)
        batch = BATCH if self._fixed_batch is None else self._fixed_batch
        dimensions = [batch if dimension == BATCH else dimension for dimension in known.dimensions]
        return onnx.helper.make_tensor_value_info(name, known.element_type, dimensions)
