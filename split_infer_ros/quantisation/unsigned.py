"""Changes the quantised activations of a graph from int8 to uint8."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx

OFFSET = 128  # of a uint8 code from the int8 code of the same value


def make_unsigned(proto: onnx.ModelProto) -> None:
    """Changes activations from int8 to uint8, in place. Zero points move by 128, so that no result changes.

    OpenVINO 2026.4 computes wrong results if a Concat before a convolution joins activations in int8 with the zero
    point 0. Weights stay in int8, because OpenVINO's kernels need them so.
    """
    from onnx import numpy_helper

    graph = proto.graph
    tensors = {str(tensor.name): numpy_helper.to_array(tensor) for tensor in graph.initializer}
    quantised = {str(node.output[0]) for node in graph.node if node.op_type == "QuantizeLinear"}
    moved: dict[str, str] = {}  # zero points: old name -> new name
    for node in graph.node:
        is_activation = node.op_type == "QuantizeLinear" or (
            node.op_type == "DequantizeLinear" and str(node.input[0]) in quantised
        )
        name = str(node.input[2]) if is_activation and len(node.input) > 2 else ""
        if name not in tensors or tensors[name].dtype != np.int8:
            continue
        if name not in moved:
            moved[name] = f"{name}/unsigned"
            unsigned = (tensors[name].astype(np.int16) + OFFSET).astype(np.uint8)
            graph.initializer.append(numpy_helper.from_array(unsigned, moved[name]))
        node.input[2] = moved[name]
    used = {str(name) for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in moved and tensor.name not in used]:
        graph.initializer.remove(tensor)
