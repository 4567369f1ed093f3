"""A model in float32 as one ONNX graph, in which the values that cross at split points keep their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.split.graph_model import GraphModel
from split_infer_ros.split.model import SplitModel

if TYPE_CHECKING:
    import onnx

MIN_OPSET = 13  # before it, scales belong to whole tensors, and weights need one for each channel


def float_graph(model: SplitModel) -> onnx.ModelProto:
    """Returns a model as an ONNX graph that the caller may change. Each node has a name of its own.

    Raises:
        ConfigurationError: torch cannot export the model, or the file is of an ONNX version that cannot be converted.
    """
    if isinstance(model, GraphModel):
        proto = _copy_of(model)
    else:
        from split_infer_ros.quantisation.exported_graph import exported_graph  # only here: it imports torch

        proto = exported_graph(model)
    taken: set[str] = set()
    for index, node in enumerate(proto.graph.node):
        if not node.name or node.name in taken:
            node.name = f"{node.op_type}_split_infer_ros_{index}"
        taken.add(node.name)
    return proto


def _copy_of(model: GraphModel) -> onnx.ModelProto:
    import onnx
    import onnx.version_converter

    opset = next((each.version for each in model.graph.proto.opset_import if each.domain in ("", "ai.onnx")), 1)
    if opset < MIN_OPSET:
        try:
            return onnx.version_converter.convert_version(model.graph.proto, MIN_OPSET)
        except Exception as error:  # the converter's errors have no common class
            reason = str(error).partition("\n")[0]
            raise ConfigurationError(
                f"{model.entry.name} cannot be quantised: it has operators of ONNX's opset {opset}, which cannot be "
                f"converted to opset {MIN_OPSET} ({reason}). Export it with opset {MIN_OPSET} or later."
            ) from error
    proto = onnx.ModelProto()
    proto.CopyFrom(model.graph.proto)
    return proto
