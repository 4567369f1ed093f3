"""Makes models of parts of a model: of some of its nodes, or of all nodes without the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from split_infer_ros.onnx.nodes import num_elements, used_values

if TYPE_CHECKING:
    import onnx

MAX_ELEMENTS = 4096  # no shape depends on larger values


def new_part(whole: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """Returns a model without nodes, for the same operator versions and functions as ``whole``."""
    import onnx

    part = onnx.ModelProto(ir_version=whole.ir_version, producer_name=whole.producer_name)
    part.opset_import.extend(whole.opset_import)
    part.functions.extend(whole.functions)
    part.graph.name = name
    return part


def add_weights(part: onnx.GraphProto, whole: onnx.GraphProto) -> None:
    """Adds to a part the weights of the whole graph that the part's nodes and outputs need."""
    used = {name for node in part.node for name in used_values(node)} | {str(each.name) for each in part.output}
    part.initializer.extend(tensor for tensor in whole.initializer if tensor.name in used)
    part.sparse_initializer.extend(tensor for tensor in whole.sparse_initializer if tensor.values.name in used)


def without_weights(proto: onnx.ModelProto, max_elements: int = MAX_ELEMENTS) -> onnx.ModelProto:
    """Returns a copy of a model without inferred shapes. Constants over ``max_elements`` elements have no values."""
    part = new_part(proto, proto.graph.name or "graph")
    part.ClearField("producer_name")  # the bytes of the copy identify measurements
    for field in ("node", "input", "output"):
        getattr(part.graph, field).extend(getattr(proto.graph, field))
    for weight in proto.graph.initializer:
        tensor = part.graph.initializer.add(name=weight.name, data_type=weight.data_type, dims=weight.dims)
        if num_elements(weight) <= max_elements:
            tensor.CopyFrom(weight)
    for sparse in proto.graph.sparse_initializer:
        name, kind = sparse.values.name, sparse.values.data_type
        part.graph.initializer.add(name=name, data_type=kind, dims=sparse.dims)
    return part
