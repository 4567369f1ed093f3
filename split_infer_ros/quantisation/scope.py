"""Which nodes of a network stay in float32: what follows the last layers, and perhaps some layers as well."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from split_infer_ros.onnx_graphs.layers import find_layers

if TYPE_CHECKING:
    import onnx

FIRST_LAYERS = 3  # what they lose, all others amplify; they are a few per cent of a network's operations


class Scope(enum.Enum):
    """What is quantised. Its value says it in words.

    - ``ALL_LAYERS``: every layer with weights.
    - ``ALL_BUT_LAST``: every one but the last ones. A detector's last layers give boxes, for which 8 bits may be few.
    - ``ALL_BUT_ENDS``: every one but the last ones and the first three.
    - ``DENSE``: the same without depthwise convolutions. These have few products, whose errors do not cancel.
    """

    ALL_LAYERS = "all layers"
    ALL_BUT_LAST = "all layers but the last ones"
    ALL_BUT_ENDS = "all layers but the first and last ones"
    DENSE = "all layers but the first, the last and depthwise ones"


def useful_scopes(graph: onnx.GraphProto) -> list[Scope]:
    """Returns the scopes in order, without those that quantise nothing or the same as an earlier one."""
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
    """Returns the names of the nodes that stay in float32.

    What follows the last layers is decoding, such as a softmax or the arithmetic of boxes. It is never quantised.
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
