"""Which nodes of a network stay in float32: what follows the last weights, and perhaps these as well."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from split_infer_ros.onnx_graphs.nodes import used_values

if TYPE_CHECKING:
    import onnx

_WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


class Scope(enum.Enum):
    """What is quantised. Its value says it in words.

    - ``ALL_LAYERS``: every layer with weights.
    - ``ALL_BUT_LAST``: every one but the last ones. A detector's last layers give boxes, for which 8 bits may be few.
    """

    ALL_LAYERS = "all layers"
    ALL_BUT_LAST = "all layers but the last ones"


def ignored_nodes(graph: onnx.GraphProto, scope: Scope) -> list[str]:
    """Returns the names of the nodes that stay in float32.

    What follows the last weights is decoding, such as a softmax or the arithmetic of boxes. It is never quantised.
    """
    weights = {str(tensor.name) for tensor in graph.initializer}
    weights |= {str(node.output[0]) for node in graph.node if node.op_type == "Constant"}
    nodes = list(graph.node)
    ignored: list[str] = []
    feeding: set[str] = set()  # the values on which a later layer depends
    for node in reversed(nodes):
        is_layer = node.op_type in _WITH_WEIGHTS and not weights.isdisjoint(node.input[1:2])
        is_last = feeding.isdisjoint(map(str, node.output))
        if is_last and not is_layer:
            ignored.append(str(node.name))
            continue
        if is_last and scope is Scope.ALL_BUT_LAST:
            ignored.append(str(node.name))
        feeding |= set(used_values(node))
    return ignored
