"""Finds which nodes of a graph are layers with weights, which layers are the last, and which nodes decode outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from split_infer_ros.onnx.nodes import constants_of, has_plain_domain, num_elements, used_values

if TYPE_CHECKING:
    import onnx

MAX_DECODING_WEIGHTS = 4096  # elements; a decoding constant is small: bins of a distribution, a table

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_SAME_VALUES = ("Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Cast", "Slice", "Split")


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a graph. All numbers are indices of nodes, in order.

    Attributes:
        layers: the nodes with learned weights.
        depthwise: the convolutions with a separate kernel for each channel.
        last: the layers with outputs that reach the results without passing another layer.
        decoding: the other nodes that no layer needs. They make boxes or probabilities from the last layers' outputs.
    """

    layers: tuple[int, ...]
    depthwise: tuple[int, ...]
    last: tuple[int, ...]
    decoding: tuple[int, ...]


def find_layers(graph: onnx.GraphProto) -> Layers:
    """Finds the layers of a graph. The graph's nodes must be in order.

    Some convolutions and products decode, so they are no layers. In YOLOv8 and similar models, boxes are distributions,
    and a convolution with the weights 0, 1, ... 15 computes the mean of each. Small weights therefore do not count as
    learned if all are whole numbers, or if they turn the results of a softmax into one number.
    """
    nodes = list(graph.node)
    values = _Values(graph)
    layers = [index for index, node in enumerate(nodes) if values.is_layer(node)]
    is_layer = set(layers)
    feeding: set[str] = set()  # values that a later layer depends on
    last: list[int] = []
    decoding: list[int] = []
    for index in range(len(nodes) - 1, -1, -1):
        if feeding.isdisjoint(map(str, nodes[index].output)):
            (last if index in is_layer else decoding).append(index)
            if index not in is_layer:
                continue
        feeding |= set(used_values(nodes[index]))
    depthwise = [index for index in layers if values.is_depthwise(nodes[index])]
    return Layers(tuple(layers), tuple(depthwise), tuple(last[::-1]), tuple(decoding[::-1]))


class _Values:
    """The values of a graph: which of them are constants, and which nodes make the others."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._tensors = constants_of(graph)
        self._producers = {str(name): node for node in graph.node for name in node.output if name}

    def is_layer(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in _LAYERS or not has_plain_domain(node):
            return False
        constants = [tensor for tensor in map(self._constant, node.input[:2]) if tensor is not None]
        return any(not self._decodes(node, tensor) for tensor in constants)

    def is_depthwise(self, layer: onnx.NodeProto) -> bool:
        weights = self._constant(str(layer.input[1]))
        groups = next((each.i for each in layer.attribute if each.name == "group"), 1)
        return layer.op_type == "Conv" and groups > 1 and weights is not None and list(weights.dims)[1:2] == [1]

    def _constant(self, name: str) -> onnx.TensorProto | None:
        """Returns the constant behind a value, if only operators that keep numbers lie between; else None."""
        source = self._source(name, ("DequantizeLinear",))
        return self._tensors.get(source)

    def _source(self, name: str, more: Sequence[str] = ()) -> str:
        while name not in self._tensors:
            node = self._producers.get(name)
            if node is None or node.op_type not in (*_SAME_VALUES, *more):
                break
            name = str(node.input[0])
        return name

    def _decodes(self, node: onnx.NodeProto, weights: onnx.TensorProto) -> bool:
        from onnx import numpy_helper

        if num_elements(weights) > MAX_DECODING_WEIGHTS:
            return False
        numbers = numpy_helper.to_array(weights)
        if numbers.any() and (numbers == numbers.round()).all():
            return True
        others = [str(name) for name in node.input[:2] if self._constant(str(name)) is None]
        makers = [self._producers.get(self._source(name)) for name in others]
        is_mean = max((0, *numbers.shape)) == numbers.size  # one row of weights makes one number
        return is_mean and any(maker is not None and maker.op_type == "Softmax" for maker in makers)
