"""Edits the ends of a graph, so that its one input is float32 images (N, 3, h, w), and its outputs are float32.

The added nodes only convert: they copy, round or repeat numbers, or make grey of colours. Names of added values begin
with ``ADDED``, but a graph's outputs keep their names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from split_infer_ros.buffers.host_arrays import FLOAT32, is_floating
from split_infer_ros.onnx.graph import OnnxGraph, OnnxTensor
from split_infer_ros.onnx.nodes import (
    add_batch_size,
    add_constant,
    add_node,
    copied,
    opset_of,
    rename_declared,
    rename_values,
)

if TYPE_CHECKING:
    import onnx

ADDED = "split_infer_ros:ends"  # begins the names of added values and nodes; a slash would name a module

LUMA = (0.299, 0.587, 0.114)  # shares of red, green and blue in grey, as in OpenCV
_AXES_ARE_INPUTS = 13  # from this opset on, Squeeze and similar operators take axes as an input


@dataclass(frozen=True, slots=True)
class ImageForm:
    """How a graph takes its images.

    Attributes:
        tensor: the input that takes images.
        colours: the number of channels, 1 or 3.
        is_channels_last: whether the channels come behind height and width.
        has_batch: whether the first dimension is the batch.
    """

    tensor: OnnxTensor
    colours: int
    is_channels_last: bool = False
    has_batch: bool = True

    @property
    def is_plain(self) -> bool:
        """Whether the graph takes float32 (N, 3, h, w)."""
        is_float32 = self.tensor.dtype == FLOAT32
        return is_float32 and self.colours == 3 and self.has_batch and not self.is_channels_last

    @property
    def is_integer(self) -> bool:
        """Whether the input's elements are whole numbers."""
        return not is_floating(self.tensor.dtype)

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """Height and width as the graph declares them; None for one that the graph leaves open."""
        rows = self.tensor.shape[int(self.has_batch) :]
        rows = rows[:2] if self.is_channels_last else rows[1:]
        return rows[0], rows[1]


class GraphEnds:
    """Edits the ends of a copy of a graph.

    Args:
        graph: the graph. It is not changed.
    """

    def __init__(self, graph: OnnxGraph) -> None:
        self._name = graph.name
        self._proto = copied(graph.proto)
        self._graph = self._proto.graph
        self._graph.ClearField("value_info")
        self._nodes = list(self._graph.node)
        self._graph.ClearField("node")  # added nodes come before the graph's own
        self._images = ""  # name of the images' input

    def take_images(self, form: ImageForm, height: int, width: int) -> None:
        """Makes the graph take float32 (N, 3, height, width). Added nodes convert this to the old ``form``."""
        import onnx

        own, place = self._declared(form.tensor.name)
        if form.is_plain:
            self._images = form.tensor.name
            return
        self._images = f"{ADDED}:images"
        new = onnx.helper.make_tensor_value_info(self._images, onnx.TensorProto.FLOAT, [1, 3, height, width])
        if form.has_batch:
            new.type.tensor_type.shape.dim[0].CopyFrom(own.type.tensor_type.shape.dim[0])
        del self._graph.input[place]
        self._graph.input.insert(place, new)
        value = self._images
        if form.colours == 1:
            weighted = self._add("Mul", [value, self._floats("luma", LUMA, (1, 3, 1, 1))], "weighted")
            value = self._add_with_axes("ReduceSum", weighted, 1, "grey", keepdims=1)
        if form.is_integer:
            value = self._whole_levels(value)
            if form.tensor.dtype == np.int8:
                value = self._add("Sub", [value, self._floats("middle", [128.0])], "signed")
        if form.tensor.dtype != FLOAT32:
            value = self._add("Cast", [value], "cast", to=own.type.tensor_type.elem_type)
        if form.is_channels_last:
            value = self._add("Transpose", [value], "channels_last", perm=[0, 2, 3, 1])
        if not form.has_batch:
            value = self._add_with_axes("Squeeze", value, 0, "image")
        self._graph.node.add(op_type="Identity", input=[value], output=[form.tensor.name], name=f"{ADDED}:input")

    def fill(self, name: str, values: Sequence[float], lengths: Sequence[int], *, is_repeated: bool) -> None:
        """Replaces an input by constant values. ``take_images`` must be called before.

        Args:
            name: the input's name.
            values: the input's elements for one image. A single value is repeated for all elements.
            lengths: the input's shape. With ``is_repeated``, it is the shape for one image, without the batch.
            is_repeated: whether the input has a batch dimension in front of ``lengths``.
        """
        import onnx

        own, place = self._declared(name)
        kind = int(own.type.tensor_type.elem_type)
        is_whole = kind not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
        numbers = [int(value) if is_whole else float(value) for value in values]
        del self._graph.input[place]
        short = [1] * len(lengths) if len(numbers) == 1 else list(lengths)
        if not is_repeated and short == list(lengths):
            self._graph.initializer.append(onnx.helper.make_tensor(name, kind, short, numbers))
            return
        constant, prefix = f"{ADDED}:values:{name}", f"{ADDED}:shape:{name}"
        self._graph.initializer.append(onnx.helper.make_tensor(constant, kind, short, numbers))
        shape = add_constant(self._graph, f"{prefix}:lengths", list(lengths))
        if is_repeated:
            count = add_batch_size(self._graph, self._images, f"{prefix}:images")
            shape = add_node(self._graph, "Concat", [count, shape], prefix, axis=0)
        self._graph.node.add(op_type="Expand", input=[constant, shape], output=[name], name=f"{ADDED}:{name}")

    def drop(self, name: str) -> None:
        """Drops an input that no node reads."""
        del self._graph.input[self._declared(name)[1]]

    def give_float32(self, *, adds_batch: bool) -> None:
        """Casts outputs of other floating-point types to float32.

        Args:
            adds_batch: whether each output also gets a first dimension of length 1, for the batch.
        """
        import onnx

        others = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, onnx.TensorProto.DOUBLE)
        for place, output in enumerate(self._graph.output):
            tensor, value = output.type.tensor_type, f"{ADDED}:own:{output.name}"
            is_other = tensor.elem_type in others
            if not (is_other or adds_batch):
                continue
            names = {str(output.name): value}
            rename_declared(self._graph.initializer, names)
            rename_values(self._nodes, names)
            name = f"{ADDED}:output:{place}"
            if is_other:
                tensor.elem_type = onnx.TensorProto.FLOAT
                result = f"{ADDED}:float:{output.name}" if adds_batch else str(output.name)
                self._nodes.append(
                    onnx.helper.make_node("Cast", [value], [result], name=f"{name}:cast", to=onnx.TensorProto.FLOAT)
                )
                value = result
            if adds_batch:
                self._nodes.append(self._with_axes("Unsqueeze", value, 0, str(output.name), name))
                dims = list(tensor.shape.dim)
                tensor.shape.ClearField("dim")
                tensor.shape.dim.add(dim_value=1)
                tensor.shape.dim.extend(dims)

    def result(self) -> OnnxGraph:
        """Returns the edited graph. Call no other method afterwards."""
        self._graph.node.extend(self._nodes)
        return OnnxGraph(self._name, self._proto)

    def _declared(self, name: str) -> tuple[onnx.ValueInfoProto, int]:
        """Returns an input's declaration, and its place among the inputs."""
        return next((each, place) for place, each in enumerate(self._graph.input) if each.name == name)

    def _whole_levels(self, value: str) -> str:
        """Rounds to whole values 0..255. Old versions of ONNX's operators lack Round, and Clip with inputs."""
        raised = self._add("Add", [value, self._floats("half", [0.5])], "raised")
        whole = self._add("Floor", [raised], "whole")
        above = self._add("Max", [whole, self._floats("black", [0.0])], "above_black")
        return self._add("Min", [above, self._floats("white", [255.0])], "levels")

    def _add(self, operator: str, inputs: Sequence[str], name: str, **attributes: int | list[int]) -> str:
        return add_node(self._graph, operator, inputs, f"{ADDED}:{name}", **attributes)

    def _add_with_axes(self, operator: str, value: str, axis: int, name: str, **attributes: int) -> str:
        name = f"{ADDED}:{name}"
        self._graph.node.append(self._with_axes(operator, value, axis, name, name, **attributes))
        return name

    def _with_axes(
        self, operator: str, value: str, axis: int, output: str, name: str, **attributes: int
    ) -> onnx.NodeProto:
        """Makes a node that takes one axis: as an input or an attribute, as the graph's opset demands."""
        import onnx

        if opset_of(self._proto) < _AXES_ARE_INPUTS:
            return onnx.helper.make_node(operator, [value], [output], name=name, axes=[axis], **attributes)
        axes = f"{ADDED}:axis:{axis}"
        if axes not in [each.name for each in self._graph.initializer]:
            add_constant(self._graph, axes, [axis])
        return onnx.helper.make_node(operator, [value, axes], [output], name=name, **attributes)

    def _floats(self, name: str, values: Sequence[float], lengths: Sequence[int] = ()) -> str:
        """Adds a constant float32 and returns its name."""
        import onnx

        name = f"{ADDED}:{name}:value"
        self._graph.initializer.append(
            onnx.helper.make_tensor(name, onnx.TensorProto.FLOAT, list(lengths or [len(values)]), list(values))
        )
        return name


def needs_float32(graph: OnnxGraph) -> bool:
    """Returns whether an output has floating-point elements of another type than float32."""
    return any(is_floating(tensor.dtype) and tensor.dtype != FLOAT32 for tensor in graph.outputs)
