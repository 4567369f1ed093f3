"""A part that computes its network in 16 bits and its decoding in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.onnx.decoding import divide
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.layers import find_layers

MakePart = Callable[[OnnxGraph, Precision], EnginePart]
"""Takes a graph and a precision; returns an engine's part that runs the graph in this precision."""


class DecodedPart(EnginePart):
    """A network in 16 bits, followed by the decoding of its outputs in float32.

    In bf16, which has 8 significant bits, boxes of hundreds of pixels would be wrong by some pixels.

    Args:
        graph: the graph of network and decoding.
        network: computes the decoding's inputs.
        decoding: computes the results.
    """

    def __init__(self, graph: OnnxGraph, network: EnginePart, decoding: EnginePart) -> None:
        super().__init__(graph)
        self.network, self.decoding = network, decoding

    def run_prepared(self, outputs: Sequence[Values | None], values: Sequence[Values]) -> tuple[Values, ...]:
        return self.decoding.run_prepared(outputs, self.decoding._prepared(self.network(*values)))


def make_decoded(graph: OnnxGraph, precision: Precision, make: MakePart) -> EnginePart:
    """Makes a graph executable whose outputs are a model's results. Their decoding computes in float32.

    A graph without layers only decodes, so it computes in float32 alone. Such a graph is the head behind a split point
    after the last layer. If decoding cannot be separated from the network, the whole graph computes in ``precision``.

    Args:
        graph: the graph in float32.
        precision: the network's precision: ``FP16`` or ``BF16``.
        make: makes the whole graph executable, or the network and the decoding.
    """
    if not find_layers(graph.proto.graph).layers:
        return make(graph, Precision.FP32)
    parts = divide(graph)
    if parts is None:
        return make(graph, precision)
    network, decoding = parts
    return DecodedPart(graph, make(network, precision), make(decoding, Precision.FP32))
