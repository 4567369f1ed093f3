"""Infers the shapes of all values of a graph, and which dimension of each value is the batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from split_infer_ros.buffers.host_arrays import DType
from split_infer_ros.onnx.graph import OnnxGraph, dtype_of, shape_of
from split_infer_ros.onnx.nodes import num_elements, used_values
from split_infer_ros.onnx.quantised_operators import plain_nodes
from split_infer_ros.onnx.shape_values import MAX_ELEMENTS, ShapeValues

if TYPE_CHECKING:
    import onnx

BATCH = "batch"  # stands for the number of images in a shape
MAX_ROUNDS = 32  # rounds of inference; each gets past one more value that shapes depend on
_TWO_BATCHES = (2, 3)  # sizes that show which dimensions depend on the batch

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
    first, second = (infer_for(graph, (size, *image_shape)) for size in _TWO_BATCHES)
    return {
        name: _joined(value, second[name])
        for name, value in first.items()
        if name in second and len(value.dimensions) == len(second[name].dimensions)
    }


def infer_for(graph: OnnxGraph, input_shape: tuple[int, ...]) -> dict[str, ValueShape]:
    """Infers the shapes of all values for images of one shape (N, C, H, W)."""
    return _infer_with_values(graph, input_shape)[0]


def accepts(graph: OnnxGraph, input_shape: tuple[int, ...]) -> bool:
    """Returns whether ONNX's inference finds no contradiction in a graph for images of one shape (N, C, H, W)."""
    import onnx

    skeleton = _skeleton(graph.proto)
    _set_shape(next(each for each in skeleton.graph.input if each.name == graph.inputs[0].name), input_shape)
    for output in skeleton.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(skeleton, strict_mode=True, data_prop=True)
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


def with_constant_shapes(graph: OnnxGraph, image_shape: tuple[int, ...]) -> OnnxGraph:
    """Returns a graph for images of one size. Constants replace the values that the graph computes from shapes.

    If exactly one dimension of a Reshape's result is the batch, the Reshape gets a constant target with -1 there. Nodes
    that no output needs are left out.

    Args:
        graph: a graph that takes any number of images. It is not changed.
        image_shape: (C, H, W) of one image.
    """
    import onnx

    (first, values), (second, others) = (_computed_for(graph, (size, *image_shape)) for size in _TWO_BATCHES)
    constants = {
        name: value for name, value in values.items() if name in others and np.array_equal(value, others[name])
    }
    proto = onnx.ModelProto()
    proto.CopyFrom(graph.proto)
    proto.graph.ClearField("node")
    for node in graph.proto.graph.node:
        if node.output and all(name in constants for name in map(str, node.output) if name):
            continue
        added = proto.graph.node.add()
        added.CopyFrom(node)
        target = f"{node.output[0]}/target" if node.output else ""
        shapes = [each.get(str(added.output[0]) if added.output else "") for each in (first, second)]
        if node.op_type == "Reshape" and str(node.input[1]) in values and str(node.input[1]) not in constants:
            lengths = _joined_lengths(*shapes)
            if lengths is not None:
                constants[target] = np.array(lengths, np.int64)
                added.input[1] = target
    _drop_unused(proto.graph)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    return OnnxGraph(graph.name, proto)


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Drops the nodes that no output needs, in place. A converter of the graph then need not know their operators."""
    needed = {str(each.name) for each in graph.output}
    for index in reversed(range(len(graph.node))):
        node = graph.node[index]
        if needed.isdisjoint(node.output):
            del graph.node[index]
        else:
            needed.update(used_values(node))


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
    found, values = _infer_with_values(graph, input_shape)
    while values.compute({name: value.lengths for name, value in found.items()}):
        pass
    return found, values.computed()


def _infer_with_values(graph: OnnxGraph, input_shape: tuple[int, ...]) -> tuple[dict[str, ValueShape], ShapeValues]:
    """Infers shapes. Returns the shapes, and the values that were computed on the way."""
    skeleton = _skeleton(graph.proto)
    _set_shape(next(each for each in skeleton.graph.input if each.name == graph.inputs[0].name), input_shape)
    for output in skeleton.graph.output:
        output.type.tensor_type.ClearField("shape")
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
    nodes = plain_nodes(skeleton.graph.node)
    skeleton.graph.ClearField("node")
    skeleton.graph.node.extend(nodes)
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
    found = {str(value.name): _read(value) for value in values if value.type.tensor_type.HasField("shape")}
    constants = inferred.graph.initializer
    return found | {
        str(each.name): ValueShape(tuple(int(length) for length in each.dims), int(each.data_type))
        for each in constants
    }


def without_weights(proto: onnx.ModelProto, max_elements: int = MAX_ELEMENTS) -> onnx.ModelProto:
    """Returns a copy of a model without inferred shapes. Constants over ``max_elements`` elements have no values."""
    import onnx

    copied = onnx.ModelProto(ir_version=proto.ir_version)
    copied.opset_import.extend(proto.opset_import)
    copied.functions.extend(proto.functions)
    for field in ("node", "input", "output"):
        getattr(copied.graph, field).extend(getattr(proto.graph, field))
    copied.graph.name = proto.graph.name or "graph"
    for weight in proto.graph.initializer:
        tensor = copied.graph.initializer.add(name=weight.name, data_type=weight.data_type, dims=weight.dims)
        if num_elements(weight) <= max_elements:
            tensor.CopyFrom(weight)
    for sparse in proto.graph.sparse_initializer:
        name, kind = sparse.values.name, sparse.values.data_type
        copied.graph.initializer.add(name=name, data_type=kind, dims=sparse.dims)
    return copied


def _read(value: onnx.ValueInfoProto) -> ValueShape:
    tensor = value.type.tensor_type
    return ValueShape(shape_of(tensor), int(tensor.elem_type))


def _set_shape(value: onnx.ValueInfoProto, lengths: tuple[int, ...]) -> None:
    shape = value.type.tensor_type.shape
    shape.ClearField("dim")
    for length in lengths:
        shape.dim.add(dim_value=length)


def _with_batch(value: ValueShape, fixed: int) -> ValueShape:
    dimensions = (BATCH, *value.dimensions[1:]) if value.dimensions[:1] == (fixed,) else value.dimensions
    return ValueShape(dimensions, value.element_type)


def _joined(first: ValueShape, second: ValueShape) -> ValueShape:
    """Joins the shapes of a value that were inferred for two batch sizes."""
    pairs = zip(first.dimensions, second.dimensions, strict=True)
    return ValueShape(tuple(_joined_dimension(pair) for pair in pairs), first.element_type)


def _joined_dimension(pair: tuple[Dimension, Dimension]) -> Dimension:
    if pair == _TWO_BATCHES:
        return BATCH
    return pair[0] if pair[0] == pair[1] else None
