"""A model in float32 as one ONNX graph, in which the values that cross at split points keep their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.onnx_export import export
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx_graphs.nodes import subgraphs
from split_infer_ros.split.graph_model import GraphModel
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import extract, outputs_of
from split_infer_ros.split.split_points import INPUT
from split_infer_ros.split.torch_model import torch_model
from split_infer_ros.split.traced_split_points import live_values

if TYPE_CHECKING:
    import onnx

MIN_OPSET = 13  # before it, scales belong to whole tensors, and weights need one for each channel


def float_graph(model: SplitModel) -> onnx.ModelProto:
    """Returns a model as an ONNX graph that the caller may change. Each node has a name of its own.

    Raises:
        ConfigurationError: torch cannot export the model, or the file is of an ONNX version that cannot be converted.
    """
    proto = _copy_of(model) if isinstance(model, GraphModel) else _exported(model)
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


def _exported(model: SplitModel) -> onnx.ModelProto:
    """Exports a model of torch. What crosses at split points is an output meanwhile, so that it is kept and named."""
    traced = torch_model(model, "int8", "take precision fp32.")
    graph = traced.whole()
    nodes = list(graph.graph.nodes)
    outputs = outputs_of(nodes)
    crossing = dict.fromkeys(outputs)
    for point in traced.split_points:
        if point.name != INPUT and point.position < len(nodes) - 1:
            crossing |= dict.fromkeys(live_values(nodes, point.position))
    kept = [node for node in crossing if node is not nodes[0]]
    part = extract(graph, nodes[1:-1], inputs=nodes[:1], outputs=kept)
    images = TensorSpec("images", traced.entry.image_shape, torch.float32)
    proto: onnx.ModelProto = export(part, [images], name=traced.entry.name, engine=Engine.OPENVINO)
    names = {str(value.name): node.name for value, node in zip(proto.graph.output, kept, strict=True)}
    del proto.graph.output[len(outputs) :]
    _rename(proto.graph, {name: f"exported/{name}" for name in _values_of(proto.graph)} | names)
    return proto


def _values_of(graph: onnx.GraphProto) -> set[str]:
    """Returns the names of all values of a graph but the inputs."""
    names = {str(name) for node in graph.node for name in node.output if name}
    return names | {str(tensor.name) for tensor in graph.initializer}


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Renames values, also where subgraphs use them."""
    for node in graph.node:
        for values in (node.input, node.output):
            for index, name in enumerate(values):
                values[index] = names.get(name, name)
        for subgraph in subgraphs(node):
            _rename(subgraph, names)
    for each in (*graph.initializer, *graph.value_info, *graph.output):
        each.name = names.get(each.name, each.name)
