"""Finds where a traced model can be split, and which tensors cross there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.onnx.conversion.inlining import ONNX_VALUE
from split_infer_ros.split.blocks import ends_of_blocks
from split_infer_ros.split.split_points import INPUT, OUTPUT, SplitPoint, kept_names
from split_infer_ros.split.traced_modules import blocks_of, kind_of, operation_of
from split_infer_ros.torch_graphs.value_sizes import TensorSize, value_sizes

SPLIT_NAMES = "split_names"  # key in a node's meta: the names of the split point before the node, if they are given

# No split point lies just before one of these: an operation of little work would be left to the other side.
_LIGHT_LAYERS = ("ReLU", "ReLU6", "SiLU", "Hardswish", "GELU", "BatchNorm2d", "Dropout", "Identity")

_CASTS = ("float", "half", "bfloat16", "to", "type_as", torch.ops.aten.to.dtype, torch.ops.aten._to_copy.default)


def find_split_points(
    graph: fx.GraphModule, image_shape: tuple[int, int, int], batch_size: int | None = None
) -> tuple[SplitPoint, ...]:
    """Finds every split point of a model.

    Args:
        graph: a traced model that takes float32 (N, C, H, W).
        image_shape: (C, H, W).
        batch_size: the only batch size that the graph takes; None if it takes any.

    Returns:
        The split points in order, from ``input`` (the head is the whole model) to ``output`` (the backbone is). At each
        of them, every tensor that crosses has the batch as its first dimension.
    """
    batch = batch_size or 2  # 2 distinguishes the batch dimension from dimensions of length 1
    sizes = value_sizes(graph, (batch, *image_shape))
    nodes = list(graph.graph.nodes)
    names_at = {index: node.meta[SPLIT_NAMES] for index, node in enumerate(nodes) if SPLIT_NAMES in node.meta}
    names_at = names_at or dict(ends_of_blocks(list(map(operation_of, nodes)), blocks_of(graph)))
    cast_names = _find_cast_to_float32(nodes)
    split_points = []
    for position in range(1, len(nodes)):
        if position == 1:
            names = [INPUT]
        elif position == len(nodes) - 1:
            names = [OUTPUT]
        elif position in names_at and kind_of(nodes[position]) not in _LIGHT_LAYERS:
            names = names_at[position]
        else:
            continue
        specs = [_spec(value_name(node), sizes[node], batch) for node in live_values(nodes, position)]
        if all(specs):
            tensors = tuple(spec for spec in specs if spec)
            split_points.append(
                SplitPoint(
                    name=names[0],
                    aliases=tuple(names[1:]),
                    position=position,
                    tensors=tensors,
                    kept=cast_names.intersection(spec.name for spec in tensors) | kept_names(tensors),
                )
            )
    return tuple(split_points)


def value_name(node: fx.Node) -> str:
    """Returns the name of a node's value at a split point.

    It is the name of the ONNX value if the graph was converted from ONNX, or else the node's own name.
    """
    return str(node.meta.get(ONNX_VALUE, node.name))


def live_values(nodes: Sequence[fx.Node], position: int) -> list[fx.Node]:
    """Returns the nodes before ``position`` with values that later nodes use.

    Constants are left out, because each side has its own.
    """
    behind = set(nodes[position:])
    return [node for node in nodes[:position] if node.op != "get_attr" and any(user in behind for user in node.users)]


def _find_cast_to_float32(nodes: Sequence[fx.Node]) -> frozenset[str]:
    """Returns the names of values that are cast to float32, and of all values that are computed from them.

    Detectors cast boxes, for example.
    """
    names: set[str] = set()
    for node in nodes:
        if node.target in _CASTS:
            is_float32 = node.target == "float" or torch.float32 in (*node.args, *node.kwargs.values())
        else:
            is_float32 = any(value_name(source) in names for source in node.all_input_nodes)
        if is_float32:
            names.add(value_name(node))
    return frozenset(names)


def _spec(name: str, size: Any, batch: int) -> TensorSpec | None:
    """Returns the spec of a value of that size; None unless it is a tensor with the batch as its first dimension."""
    if not isinstance(size, TensorSize) or size.shape[:1] != (batch,):
        return None
    return TensorSpec(name, size.shape[1:], size.dtype)
