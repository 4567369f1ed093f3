"""Says which nodes of a network stay in float32: all that decode the network's outputs, and perhaps some layers."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from split_infer_ros.onnx.layers import find_layers

if TYPE_CHECKING:
    import onnx

FIRST_LAYERS = 3  # later layers amplify the first ones' errors; they are a few per cent of all operations


class Scope(enum.Enum):
    """Which layers are quantised. The value names them in words.

    - ``ALL_LAYERS``: every layer with weights.
    - ``ALL_BUT_LAST``: all but the last layers. A detector's last layers give boxes, which may need more than 8 bits.
    - ``ALL_BUT_ENDS``: all but the last layers and the first three.
    - ``DENSE``: all but the last layers, the first three, and depthwise convolutions. A depthwise convolution adds few
      products, so that their errors do not cancel.
    """

    ALL_LAYERS = "all layers"
    ALL_BUT_LAST = "all layers but the last ones"
    ALL_BUT_ENDS = "all layers but the first and last ones"
    DENSE = "all layers but the first, the last and depthwise ones"


def useful_scopes(graph: onnx.GraphProto) -> list[Scope]:
    """Returns the scopes that are worth a try for a graph, from the most to the fewest quantised layers.

    Scopes that quantise nothing, or the same layers as an earlier one, are left out.
    """
    layers = {str(graph.node[index].name) for index in find_layers(graph).layers}
    tried: list[set[str]] = [set()]
    useful = []
    for scope in Scope:
        quantised = layers.difference(ignored_nodes(graph, scope))
        if quantised not in tried:
            tried.append(quantised)
            useful.append(scope)
    return useful or [Scope.ALL_LAYERS]


def ignored_nodes(graph: onnx.GraphProto, scope: Scope) -> list[str]:
    """Returns the names of the nodes of a graph that stay in float32 with a scope.

    Nodes behind the last layers decode: they compute a softmax or boxes, for example. Such nodes are never quantised.
    """
    found = find_layers(graph)
    ignored = set(found.decoding)
    if scope is not Scope.ALL_LAYERS:
        ignored |= set(found.last)
    if scope in (Scope.ALL_BUT_ENDS, Scope.DENSE):
        ignored |= set(found.layers[:FIRST_LAYERS])
    if scope is Scope.DENSE:
        ignored |= set(found.depthwise)
    return [str(graph.node[index].name) for index in sorted(ignored)]
