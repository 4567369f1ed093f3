"""Converts an ONNX graph to a torch graph, with the library onnx2torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import fx

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.conversion.grid_sample import add_missing_operators
from split_infer_ros.onnx.conversion.inlining import OUTPUT, Inliner
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import add_node, copied, small_integers
from split_infer_ros.onnx.opset import with_opset
from split_infer_ros.onnx.shapes import ValueShape
from split_infer_ros.runtime.optional_packages import import_package

LIBRARY = "onnx2torch"
OPSET = 17  # onnx2torch 1.5.15 knows no newer version of Split, Resize, Pad and others


def import_graph(graph: OnnxGraph, shapes: Mapping[str, ValueShape]) -> fx.GraphModule:
    """Converts an ONNX graph to a torch graph.

    An operator becomes plain torch operations if its options are known already. Otherwise it stays a module of
    onnx2torch. Every node names the ONNX value that it belongs to in ``meta[ONNX_VALUE]``.

    Args:
        graph: the ONNX graph. It is not changed.
        shapes: shapes of the graph's values, by name.

    Returns:
        The converted graph. It maps tensors to a tensor, or to a list of tensors.

    Raises:
        ConfigurationError: onnx2torch is not installed, or does not have all operators of the graph.
    """
    onnx2torch = import_package(
        LIBRARY,
        f"{graph.name} is an ONNX model, which engine torch runs by the Python package {LIBRARY}",
        f"pip install onnx {LIBRARY} onnxruntime, or take engine onnxruntime or openvino",
    )
    add_missing_operators()
    try:
        older = with_opset(graph, OPSET)
    except ConfigurationError as error:
        raise _refusal(graph, str(error).partition(" uses ")[2].rstrip(".")) from error
    lacking = _lacking(older)
    if lacking:
        raise _refusal(graph, ", ".join(lacking))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about options with effects that the caller sees in the results
            converted = onnx2torch.convert(_for_library(older), attach_onnx_mapping=True)
        return Inliner(converted, [each.name for each in older.inputs], shapes).inlined()
    except NotImplementedError as error:
        raise _refusal(graph, str(error).rstrip(".")) from error


def _lacking(graph: OnnxGraph) -> list[str]:
    """Returns the names of the operators that onnx2torch does not have."""
    from onnx2torch.node_converters import get_converter

    versions = {each.domain: each.version for each in graph.proto.opset_import}
    lacking = set()
    for node in graph.proto.graph.node:
        try:
            get_converter(str(node.op_type), versions.get(node.domain, OPSET), str(node.domain))
        except NotImplementedError:
            lacking.add(str(node.op_type))
    return sorted(lacking)


def _for_library(graph: OnnxGraph) -> Any:
    """Returns a copy of the model in a form that onnx2torch can read.

    Each output gets a node that only passes it on, because onnx2torch takes all results of a node as one output. Empty
    inputs at the end of a node are removed, because onnx2torch looks for a value with the empty name. ``allowzero`` is
    removed, because onnx2torch refuses it. torch's exporter always writes it, but only empty tensors need it.
    """
    proto = copied(graph.proto)  # a copy, because onnx2torch changes its argument
    constants = small_integers(proto.graph)
    for node in proto.graph.node:
        while node.input and not node.input[-1]:
            del node.input[-1]
        for attribute in [each for each in node.attribute if (node.op_type, each.name) == ("Reshape", "allowzero")]:
            if 0 not in constants.get(str(node.input[1]), ()):
                node.attribute.remove(attribute)
    for number, output in enumerate(proto.graph.output):
        given = f"{OUTPUT}/{number}"
        output.name = add_node(proto.graph, "Identity", [output.name], given)
    return proto


def _refusal(graph: OnnxGraph, lacking: str) -> ConfigurationError:
    return ConfigurationError(
        f"{graph.name} cannot run on engine torch, because {LIBRARY} lacks operators of it ({lacking}): take engine "
        "onnxruntime or openvino."
    )
