"""Writes a graph in an older version of ONNX's operators, for tools that do not know newer versions.

Newer versions of most operators only add types and options. A graph without these means the same in the older version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import PLAIN_DOMAINS, copied, has_plain_domain, opset_of, small_integers

if TYPE_CHECKING:
    import onnx

_SAMPLING_MODES = {b"linear": b"bilinear", b"cubic": b"bicubic"}  # GridSample's modes and their names before version 20


def with_opset(graph: OnnxGraph, version: int) -> OnnxGraph:
    """Returns a graph in one version of ONNX's operators. A graph of that or an older version is returned unchanged.

    The caller must check that the results are the same. For example, a Split into a number of parts, of which the last
    may be shorter, becomes a Split into equal parts.

    Args:
        graph: the graph. It is not changed.
        version: the version of ONNX's operators.

    Raises:
        ConfigurationError: the graph has operators, or options of operators, that this version lacks.
    """
    newer = opset_of(graph.proto)
    if newer <= version:
        return graph
    proto = copied(graph.proto)
    constants = small_integers(proto.graph)
    nodes = filter(has_plain_domain, proto.graph.node)
    lacking = {str(node.op_type) for node in nodes if not _rewrite(node, newer, version, constants)}
    if lacking:
        raise ConfigurationError(
            f"{graph.name} uses {', '.join(sorted(lacking))} of ONNX's operators version {newer} in a way that version "
            f"{version} lacks."
        )
    for each in proto.opset_import:
        if each.domain in PLAIN_DOMAINS:
            each.version = version
    return OnnxGraph(graph.name, proto)


def _rewrite(node: onnx.NodeProto, newer: int, older: int, constants: dict[str, list[int]]) -> bool:
    """Rewrites a node in place. Returns whether the older version can express it."""
    import onnx

    operator = str(node.op_type)
    now = onnx.defs.get_schema(operator, newer)
    if now.since_version <= older:
        return True
    try:
        before = onnx.defs.get_schema(operator, older)
    except onnx.defs.SchemaError:
        return False
    if operator.startswith("Reduce") and len(node.input) > before.max_input and node.input[1] in constants:
        node.attribute.append(onnx.helper.make_attribute("axes", constants[node.input[1]]))
        del node.input[1:]
    dropped = [each for each in node.attribute if each.name not in before.attributes]
    for attribute in dropped:
        is_default = attribute == now.attributes[attribute.name].default_value
        if not is_default and (operator, attribute.name) != ("Split", "num_outputs"):
            return False
        node.attribute.remove(attribute)
    for attribute in node.attribute:
        if (operator, attribute.name) == ("GridSample", "mode"):
            attribute.s = _SAMPLING_MODES.get(attribute.s, attribute.s)
    return len(node.input) <= int(before.max_input)
