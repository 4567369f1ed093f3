"""Infers the shapes of all values of a graph, and which dimension of each value is the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import DType
from split_infer_ros.onnx.graph import OnnxGraph, dtype_of, shape_of
from split_infer_ros.onnx.nodes import replace_nodes
from split_infer_ros.onnx.parts import without_weights
from split_infer_ros.onnx.quantised_operators import plain_nodes
from split_infer_ros.onnx.shape_values import ShapeValues

if TYPE_CHECKING:
    import onnx

BATCH = "batch"  # stands for the number of images in a shape
MAX_ROUNDS = 32  # rounds of inference; each gets past one more value that shapes depend on
TWO_BATCHES = (2, 3)  # sizes that show which dimensions depend on the batch

Dimension = int | str | None  # a length, ``BATCH``, or None for an unknown length


@dataclass(frozen=True, slots=True)
class ValueShape:
    """The shape and element type of a value.

    Attributes:
        dimensions: the shape of a batch; each dimension is a length, ``BATCH``, or None if it is unknown.
        element_type: an ``onnx.TensorProto.DataType``.
    """

    dimensions: tuple[Dimension, ...]
    element_type: int

    @property
    def dtype(self) -> DType | None:
        """The dtype of the elements; None if arrays of it are not supported."""
        return dtype_of(self.element_type)

    @property
    def lengths(self) -> tuple[int | None, ...]:
        """The dimensions that are lengths; None for the batch and unknown dimensions."""
        return tuple(length if isinstance(length, int) else None for length in self.dimensions)

    @property
    def image_shape(self) -> tuple[int, ...] | None:
        """The shape of one image's values; None unless the first dimension is the batch and all others are known."""
        lengths = tuple(length for length in self.dimensions[1:] if isinstance(length, int))
        is_batch_first = self.dimensions[:1] == (BATCH,) and len(lengths) == len(self.dimensions) - 1
        return lengths if is_batch_first else None

    @property
    def is_known(self) -> bool:
        """Whether every dimension is a length or the batch."""
        return None not in self.dimensions


def infer_shapes(graph: OnnxGraph, image_shape: tuple[int, ...]) -> Mapping[str, ValueShape]:
    """Infers the shapes of all values of a graph, as far as ONNX's shape inference can.

    A graph with a symbolic batch is inferred for two batch sizes: the difference shows where the batch is. A graph that
    takes a fixed number of images is inferred for that number. A first dimension of that length is then taken for the
    batch. For one image this is always right, because results of single images can be joined along this dimension.

    Args:
        graph: the graph. Its first input takes the images.
        image_shape: (C, H, W) of an image. It also fixes dimensions that the graph leaves open.
    """
    fixed = graph.inputs[0].shape[0]
    if fixed is not None:
        return {name: _with_batch(value, fixed) for name, value in infer_for(graph, (fixed, *image_shape)).items()}
    first, second = (infer_for(graph, (size, *image_shape)) for size in TWO_BATCHES)
    return {
        name: _joined(value, second[name])
        for name, value in first.items()
        if name in second and len(value.dimensions) == len(second[name].dimensions)
    }


def infer_for(graph: OnnxGraph, input_shape: tuple[int, ...]) -> dict[str, ValueShape]:
    """Infers the shapes of all values for images of one shape (N, C, H, W)."""
    return infer_with_values(graph, input_shape)[0]


def accepts(graph: OnnxGraph, input_shape: tuple[int, ...]) -> bool:
    """Returns whether ONNX's inference finds no contradiction in a graph for images of one shape (N, C, H, W)."""
    import onnx

    try:
        onnx.shape_inference.infer_shapes(_skeleton_for(graph, input_shape), strict_mode=True, data_prop=True)
    except Exception:  # inference errors have no common class
        return False
    return True


def infer_outputs(proto: onnx.ModelProto) -> None:
    """Infers the shapes of outputs that declare none, and sets the shapes that it finds, in place."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(_skeleton(proto), data_prop=True)
    except Exception:  # an operator's inference failed, so nothing is known
        return
    found = {str(value.name): value.type.tensor_type for value in inferred.graph.output}
    for output in proto.graph.output:
        tensor = found.get(str(output.name))
        if tensor is not None and tensor.HasField("shape") and not output.type.tensor_type.HasField("shape"):
            output.type.tensor_type.shape.CopyFrom(tensor.shape)


def infer_with_values(graph: OnnxGraph, input_shape: tuple[int, ...]) -> tuple[dict[str, ValueShape], ShapeValues]:
    """Infers shapes. Returns the shapes, and the values that were computed on the way."""
    skeleton = _skeleton_for(graph, input_shape)
    found = _infer(skeleton)
    values = ShapeValues(skeleton)
    names = {str(name) for node in skeleton.graph.node for name in node.output if name}
    for _ in range(MAX_ROUNDS):
        is_complete = all(name in found and found[name].is_known for name in names)
        if is_complete or not values.compute({name: value.lengths for name, value in found.items()}):
            break
        found |= _infer(values.as_constants())
    return found, values


def _skeleton(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy for inference: without large weights, and only with operators that ONNX's inference knows."""
    skeleton = without_weights(proto)
    replace_nodes(skeleton.graph, plain_nodes(skeleton.graph.node))
    return skeleton


def _skeleton_for(graph: OnnxGraph, input_shape: tuple[int, ...]) -> onnx.ModelProto:
    """Returns a copy of a graph's model for inference, which takes images of one shape and declares no other shape."""
    import onnx

    skeleton = _skeleton(graph.proto)
    images = next(each for each in skeleton.graph.input if each.name == graph.inputs[0].name)
    kind = images.type.tensor_type.elem_type
    images.CopyFrom(onnx.helper.make_tensor_value_info(images.name, kind, input_shape))
    for output in skeleton.graph.output:
        output.type.tensor_type.ClearField("shape")
    return skeleton


def _infer(proto: onnx.ModelProto) -> dict[str, ValueShape]:
    """Returns the shapes that ONNX's inference finds in one pass."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    except Exception:  # an operator's inference failed; try without propagated values, which finds less
        try:
            inferred = onnx.shape_inference.infer_shapes(proto)
        except Exception:
            inferred = proto
    values = (*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output)
    tensors = {str(value.name): value.type.tensor_type for value in values}
    found = {
        name: ValueShape(shape_of(tensor), int(tensor.elem_type))
        for name, tensor in tensors.items()
        if tensor.HasField("shape")
    }
    return found | {
        str(each.name): ValueShape(tuple(map(int, each.dims)), int(each.data_type))
        for each in inferred.graph.initializer
    }


def _with_batch(value: ValueShape, fixed: int) -> ValueShape:
    dimensions = (BATCH, *value.dimensions[1:]) if value.dimensions[:1] == (fixed,) else value.dimensions
    return ValueShape(dimensions, value.element_type)


def _joined(first: ValueShape, second: ValueShape) -> ValueShape:
    """Joins the shapes of a value that were inferred for two batch sizes."""
    pairs = zip(first.dimensions, second.dimensions, strict=True)
    dimensions = (BATCH if pair == TWO_BATCHES else pair[0] if pair[0] == pair[1] else None for pair in pairs)
    return ValueShape(tuple(dimensions), first.element_type)
