"""Finds where an ONNX model can be split, and which tensors cross there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.onnx.dataflow import Dataflow
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.onnx.inputs import ADDED
from split_infer_ros.onnx.nodes import num_elements, used_values
from split_infer_ros.onnx.shapes import ValueShape
from split_infer_ros.split.blocks import Operation, ends_of_blocks, find_blocks
from split_infer_ros.split.onnx_modules import read_modules, unique_names
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint, kept_names

if TYPE_CHECKING:
    import onnx

# No split point lies just before one of these: an operation of little work would be left to the other side.
_LIGHT_OPERATORS = (
    *("BatchNormalization", "Clip", "Dropout", "Elu", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu"),
    *("Mish", "PRelu", "Relu", "Sigmoid", "Softplus", "Swish"),
)


def find_onnx_split_points(
    graph: OnnxGraph, dataflow: Dataflow, shapes: Mapping[str, ValueShape]
) -> tuple[SplitPoint, ...]:
    """Finds every split point of an ONNX model, in order.

    At the first one, ``input``, the head is the whole model. At the last one, ``output``, the backbone is. The others
    lie behind blocks; see ``find_blocks``. In a model without blocks, they lie behind nodes where a single tensor
    crosses.

    A place is no split point unless each tensor that crosses there has the batch as its first dimension, and known
    other lengths. This holds for ``output``, too.

    Args:
        graph: the whole model. Its input is one tensor of images.
        dataflow: the graph's dataflow.
        shapes: the shapes of the graph's values.
    """
    names_at = {0: [INPUT]}
    names_at |= dict(_ends_of_blocks(graph, dataflow) or _ends_of_nodes(dataflow))
    names_at[len(dataflow.nodes)] = [OUTPUT]
    split_points: list[SplitPoint] = []
    taken = {INPUT, OUTPUT}
    for position, names in names_at.items():
        specs = [_spec(name, shapes) for name in dataflow.live(position)]
        is_end = names[0] in (INPUT, OUTPUT) and len(names) == 1
        if not all(specs) or (names[0] in taken and not is_end):
            continue
        taken |= set(names)
        tensors = tuple(spec for spec in specs if spec)
        split_points.append(SplitPoint(names[0], tuple(names[1:]), position, tensors, kept_names(tensors)))
    return tuple(split_points)


def _spec(name: str, shapes: Mapping[str, ValueShape]) -> TensorSpec | None:
    """Returns the spec of a value; None unless the batch is in front and all other lengths are known."""
    known = shapes.get(name)
    if known is None or known.image_shape is None or known.dtype is None:
        return None
    return TensorSpec(name, known.image_shape, known.dtype)


def _ends_of_blocks(graph: OnnxGraph, dataflow: Dataflow) -> list[tuple[int, list[str]]]:
    """Returns the positions and names of the places behind blocks; none if the model has no blocks."""
    nodes = [dataflow.nodes[index] for index in dataflow.computing]
    operations, classes = read_modules(nodes)
    sizes = {str(tensor.name): num_elements(tensor) for tensor in graph.proto.graph.initializer}
    weights: Counter[str] = Counter()
    for node, operation in zip(nodes, operations, strict=True):
        weights[operation.owner] += sum(sizes.get(name, 0) for name in used_values(node))
    blocks = find_blocks(operations, classes, weights)
    if not blocks:
        return []
    return [
        (dataflow.computing[count - 1] + 1, names)
        for count, names in ends_of_blocks([*operations, Operation("")], blocks)
        if count < len(nodes) and _may_lie_at(nodes, count)
    ]


def _ends_of_nodes(dataflow: Dataflow) -> Iterator[tuple[int, list[str]]]:
    """Yields the positions and names of the places behind nodes where a single tensor crosses."""
    nodes = [dataflow.nodes[index] for index in dataflow.computing]
    for count, name in enumerate(unique_names(nodes)[:-1], start=1):
        position = dataflow.computing[count - 1] + 1
        if _may_lie_at(nodes, count) and len(dataflow.live(position)) == 1:
            yield position, [name]


def _may_lie_at(nodes: Sequence[onnx.NodeProto], count: int) -> bool:
    """Returns whether a split point may lie behind ``count`` nodes, as far as the nodes beside it tell.

    A node that the package adds at an end of a graph only converts, so it stays with the node beside it.
    """
    is_added = any(str(node.name).startswith(ADDED) for node in nodes[count - 1 : count + 1])
    return nodes[count].op_type not in _LIGHT_OPERATORS and not is_added
