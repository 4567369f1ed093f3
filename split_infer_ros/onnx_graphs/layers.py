"""Which nodes of a graph are layers with weights, which layers are the last ones, and what decodes their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from split_infer_ros.onnx_graphs.nodes import has_plain_domain, num_elements, used_values

if TYPE_CHECKING:
    import onnx

MAX_DECODING_WEIGHTS = 4096  # elements of what decodes: the bins of a distribution, a small table

_LAYERS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_SAME_VALUES = ("Identity", "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Flatten", "Cast", "Slice", "Split")


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a graph. All numbers are indices of nodes, in order.

    Attributes:
        layers: the nodes with weights that were learned.
        depthwise: the convolutions in which each channel has a kernel of its own.
        last: the layers whose outputs reach the results without passing another layer.
        decoding: what follows the last layers, and makes boxes or probabilities of their outputs. No layer needs it.
    """

    layers: tuple[int, ...]
    depthwise: tuple[int, ...]
    last: tuple[int, ...]
    decoding: tuple[int, ...]


def find_layers(graph: onnx.GraphProto) -> Layers:
    """Finds the layers of a graph whose nodes are in order.

    A convolution or product may decode as well. The boxes of YOLOv8 and its kin are distributions, and the mean of each
    one is a convolution with the weights 0, 1, ... 15. So whole numbers are no learned weights. Nor are the weights of
    what makes one number of the results of a softmax.
    """
    nodes = list(graph.node)
    values = _Values(graph)
    layers = [index for index, node in enumerate(nodes) if values.is_layer(node)]
    is_layer = set(layers)
    feeding: set[str] = set()  # the values on which a later layer depends
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
    """The values of a graph: which of them are constants, and what makes the others."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._tensors = {str(tensor.name): tensor for tensor in graph.initializer}
        self._producers = {str(name): node for node in graph.node for name in node.output if name}
        for node in graph.node:
            if node.op_type == "Constant" and has_plain_domain(node):
                self._tensors |= {str(node.output[0]): each.t for each in node.attribute if each.name == "value"}

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
        """Returns the constant from which a value comes by operators that keep the values; None if it is computed."""
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
