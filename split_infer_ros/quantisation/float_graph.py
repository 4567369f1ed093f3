"""Gives a model in float32 as one ONNX graph. Values that cross at split points keep their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.nodes import copied, opset_of
from split_infer_ros.split.graph_network import GraphNetwork
from split_infer_ros.split.model import SplitModel

if TYPE_CHECKING:
    import onnx

MAKING = ("Cast", "Mul")  # operators that compute weights; NNCF reads only weights that the file holds ready for use
MIN_OPSET = 13  # older opsets scale whole tensors, but weights need a scale for each channel


def float_graph(model: SplitModel) -> onnx.ModelProto:
    """Returns a model as an ONNX graph that the caller may change. Each node has a unique name.

    Raises:
        ConfigurationError: torch cannot export the model, the file is of an ONNX version that cannot be converted, or
            the file computes its weights.
    """
    if isinstance(model.network, GraphNetwork):
        name, original = model.entry.name, model.network.prepared.graph.proto
        _check_weights(name, original)
        proto = _copy_of(name, original)
    else:
        from split_infer_ros.quantisation.exported_graph import exported_graph  # only here: it imports torch

        proto = exported_graph(model)
    taken: set[str] = set()
    for index, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_split_infer_ros_{index}"
        taken.add(node.name)
    return proto


def _check_weights(name: str, proto: onnx.ModelProto) -> None:
    made = {node.output[0] for node in proto.graph.node if node.op_type in MAKING}
    for node in proto.graph.node:
        if node.op_type == "Conv" and node.input[1] in made:
            raise ConfigurationError(
                f"{name} cannot be quantised: its ONNX file computes the weights {node.input[1]}. Export "
                "it with the weights that it uses; shapes is quantised where torch is installed."
            )


def _copy_of(name: str, original: onnx.ModelProto) -> onnx.ModelProto:
    opset = opset_of(original)
    if opset < MIN_OPSET:
        import onnx.version_converter

        try:
            return onnx.version_converter.convert_version(original, MIN_OPSET)
        except Exception as error:  # the converter's errors have no common class
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(
                f"{name} cannot be quantised: it has operators of ONNX's opset {opset}, which cannot be "
                f"converted to opset {MIN_OPSET} ({reason}). Export it with opset {MIN_OPSET} or later."
            ) from error
    return copied(original)
