"""Rewrites ONNX Runtime's quantised operators, which compute on whole numbers, as ONNX's own operators.

``onnxruntime.quantization`` writes quantised operators in its format ``QOperator``. ONNX itself has ``QLinearConv`` and
``QLinearMatMul``, and infers their shapes. It does not know the others, and OpenVINO does not have all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.nodes import copied, replace_nodes

if TYPE_CHECKING:
    import onnx

DOMAIN = "com.microsoft"
_PREFIX = "split_infer_ros/plain"  # begins the names of added values


class _Parts(NamedTuple):
    """What a quantised operator consists of. A place is an index among its inputs.

    Attributes:
        operator: the operator of ONNX that computes the same on float32.
        inputs: for each input of ``operator``, the places of a value, its scale and its zero point. An input with one
            place is a value that is not quantised.
        scale: the place of the result's scale. The place of its zero point follows.
    """

    operator: str
    inputs: tuple[tuple[int, ...], ...]
    scale: int


_TWO = ((0, 1, 2), (3, 4, 5))
_ONE = ((0, 1, 2),)
_FIXED: Mapping[str, _Parts] = {
    "QLinearAdd": _Parts("Add", _TWO, 6),
    "QLinearMul": _Parts("Mul", _TWO, 6),
    "QLinearSigmoid": _Parts("Sigmoid", _ONE, 3),
    "QLinearLeakyRelu": _Parts("LeakyRelu", _ONE, 3),
    "QLinearSoftmax": _Parts("Softmax", _ONE, 3),
    "QLinearAveragePool": _Parts("AveragePool", _ONE, 3),
    "QLinearGlobalAveragePool": _Parts("GlobalAveragePool", _ONE, 3),
    "QLinearWhere": _Parts("Where", ((0,), (1, 2, 3), (4, 5, 6)), 7),
}
_REWRITTEN = {*_FIXED, "QuantizeLinear", "DequantizeLinear", "QLinearConcat", "QGemm"}  # these in ``DOMAIN`` only
_OWN_ATTRIBUTES = ("channels_last", "opset")  # attributes that ONNX's operators lack


def with_plain_operators(graph: OnnxGraph) -> OnnxGraph:
    """Returns a graph with ONNX's own operators in place of ONNX Runtime's quantised ones; see ``plain_nodes``.

    Returns the given graph if it has no quantised operators.
    """
    if _REWRITTEN.isdisjoint(graph.operators):
        return graph
    nodes = list(graph.proto.graph.node)
    if all(_rewriting(node) is None for node in nodes):
        return graph
    proto = copied(graph.proto)
    replace_nodes(proto.graph, plain_nodes(nodes))
    return OnnxGraph(graph.name, proto)


def plain_nodes(nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Returns nodes with ONNX's own operators in place of ONNX Runtime's quantised ones.

    They compute the same as the given nodes, up to rounding. A node with options that ONNX lacks stays as it is.
    """
    found: list[onnx.NodeProto] = []
    for node in nodes:
        rewrite = _rewriting(node)
        found += [node] if rewrite is None else rewrite(node)
    return found


def _rewriting(node: onnx.NodeProto) -> Callable[[onnx.NodeProto], list[onnx.NodeProto]] | None:
    """Returns the function that rewrites a node; None if it stays as it is or has options that ONNX lacks."""
    operator = str(node.op_type)
    lays_channels_last = any(each.name == "channels_last" and each.i for each in node.attribute)
    if node.domain != DOMAIN or lays_channels_last:
        return None
    if operator in ("QuantizeLinear", "DequantizeLinear"):
        return _as_onnx
    if operator in _FIXED:
        return _rewrite_fixed
    return {"QLinearConcat": _rewrite_concat, "QGemm": _rewrite_gemm}.get(operator)


def _as_onnx(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    plain = copied(node)
    plain.domain = ""
    return [plain]


def _rewrite_fixed(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    parts = _FIXED[str(node.op_type)]
    operands = [[_input(node, place) for place in places] for places in parts.inputs]
    result = [_input(node, parts.scale), _input(node, parts.scale + 1)]
    return _computed(node, parts.operator, operands, result)


def _rewrite_concat(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    operands = [list(map(str, node.input[place : place + 3])) for place in range(2, len(node.input), 3)]
    return _computed(node, "Concat", operands, [_input(node, 0), _input(node, 1)])


def _rewrite_gemm(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Rewrites a matrix product. The scale of its int32 bias is the product of its two inputs' scales."""
    operands = [[_input(node, place) for place in places] for places in _TWO]
    more = []
    if _input(node, 6):
        scale = _name(node, "bias_scale")
        more.append(_node("Mul", [_input(node, 1), _input(node, 4)], scale))
        whole = _name(node, "bias_as_float")
        more.append(_node("Cast", [_input(node, 6)], whole, to=1))  # onnx.TensorProto.FLOAT
        more.append(_node("Mul", [whole, scale], _name(node, "bias")))
        operands.append([_name(node, "bias")])
    return more + _computed(node, "Gemm", operands, [_input(node, 7), _input(node, 8)])


def _computed(
    node: onnx.NodeProto, operator: str, operands: Sequence[Sequence[str]], result: Sequence[str]
) -> list[onnx.NodeProto]:
    """Returns nodes that dequantise the operands, run an operator on them and quantise its result.

    Args:
        node: the node that the new nodes replace. The operator gets its attributes.
        operator: the operator of ONNX.
        operands: for each operand, the names of a value, its scale and its zero point, or of a value alone.
        result: names of the result's scale and zero point; empty names if the result stays in float32.
    """
    nodes, taken = [], []
    for place, (value, *rest) in enumerate(operands):
        if rest:
            scaled = _name(node, f"operand_{place}")
            # Weights of a Gemm have a scale for each column, which is the last dimension.
            axis = {"axis": -1 - _attribute(node, "transB")} if operator == "Gemm" and place == 1 else {}
            nodes.append(_node("DequantizeLinear", [value, *filter(None, rest)], scaled, **axis))
            value = scaled
        taken.append(value)
    output = str(node.output[0])
    computed = _node(operator, taken, _name(node, "result") if result[0] else output)
    computed.attribute.extend(each for each in node.attribute if each.name not in _OWN_ATTRIBUTES)
    computed.name = str(node.name)
    nodes.append(computed)
    if result[0]:
        nodes.append(_node("QuantizeLinear", [str(computed.output[0]), *filter(None, result)], output))
    return nodes


def _node(operator: str, inputs: Sequence[str], output: str, **attributes: int) -> onnx.NodeProto:
    import onnx

    made: onnx.NodeProto = onnx.helper.make_node(operator, list(inputs), [output], name=output, **attributes)
    return made


def _name(node: onnx.NodeProto, what: str) -> str:
    return f"{_PREFIX}/{what}/{node.output[0]}"


def _input(node: onnx.NodeProto, place: int) -> str:
    return str(node.input[place]) if place < len(node.input) else ""


def _attribute(node: onnx.NodeProto, name: str) -> int:
    return next((int(each.i) for each in node.attribute if each.name == name), 0)
