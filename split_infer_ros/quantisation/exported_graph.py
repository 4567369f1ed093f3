"""A model of torch as an ONNX graph, in which the values that cross at split points have the names of torch's graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.onnx_export import export
from split_infer_ros.onnx_graphs.nodes import subgraphs
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import extract, outputs_of
from split_infer_ros.split.split_points import INPUT
from split_infer_ros.split.torch_model import torch_model
from split_infer_ros.split.traced_split_points import live_values

if TYPE_CHECKING:
    import onnx


def exported_graph(model: SplitModel) -> onnx.ModelProto:
    """Exports a model of torch. What crosses at split points is an output meanwhile, so that it is kept and named.

    Raises:
        ConfigurationError: the model is none of torch, or torch cannot export it.
    """
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
    images = TensorSpec("images", traced.entry.image_shape, FLOAT32)
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
