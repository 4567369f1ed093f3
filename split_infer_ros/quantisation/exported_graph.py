"""Exports a torch model as an ONNX graph. Values that cross at split points keep their names from torch's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.exported_part import export
from split_infer_ros.onnx.nodes import rename_declared, rename_values
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import extract, outputs_of
from split_infer_ros.split.split_points import INPUT
from split_infer_ros.split.torch_network import torch_network
from split_infer_ros.split.traced_split_points import live_values

if TYPE_CHECKING:
    import onnx


def exported_graph(model: SplitModel) -> onnx.ModelProto:
    """Exports a torch model as an ONNX graph in float32.

    During the export, values that cross at split points are outputs of the graph. So their names in ONNX become known,
    and are replaced by the names from torch's graph.

    Raises:
        ConfigurationError: the model is no torch model, or torch cannot export it.
    """
    traced = torch_network(model, "int8", "take precision fp32.")
    graph = traced.graph.whole()
    nodes = list(graph.graph.nodes)
    outputs = outputs_of(nodes)
    crossing = dict.fromkeys(outputs)
    for point in traced.split_points:
        if point.name != INPUT and point.position < len(nodes) - 1:
            crossing |= dict.fromkeys(live_values(nodes, point.position))
    kept = [node for node in crossing if node is not nodes[0]]
    part = extract(graph, nodes[1:-1], inputs=nodes[:1], outputs=kept)
    images = TensorSpec("images", traced.entry.image_shape, FLOAT32)
    proto: onnx.ModelProto = export(part, [images], name=traced.entry.name, engine=Engine.OPENVINO)
    names = {str(value.name): node.name for value, node in zip(proto.graph.output, kept, strict=True)}
    del proto.graph.output[len(outputs) :]
    graph_proto = proto.graph
    renamed = {name: f"exported/{name}" for name in _values_of(graph_proto)} | names
    rename_values(graph_proto.node, renamed)
    rename_declared((*graph_proto.initializer, *graph_proto.value_info, *graph_proto.output), renamed)
    return proto


def _values_of(graph: onnx.GraphProto) -> set[str]:
    """Returns the names of all values of a graph except its inputs."""
    names = {str(name) for node in graph.node for name in node.output if name}
    return names | {str(tensor.name) for tensor in graph.initializer}
