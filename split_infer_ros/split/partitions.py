"""The two partitions of a model at a split point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from split_infer_ros.split.split_points import SplitPoint, live_values


@dataclass(frozen=True, slots=True)
class Partitions:
    """A model in two parts that share its parameters: ``head(*backbone(images))`` is the whole.

    Attributes:
        cut: where it was split.
        backbone: (N, C, H, W) images -> tuple of the split point's tensors.
        head: the split point's tensors -> tuple of the model's outputs.
    """

    split_point: SplitPoint
    backbone: nn.Module
    head: nn.Module


def split(graph: fx.GraphModule, split_point: SplitPoint) -> Partitions:
    """Cut a traced model in two; nothing is copied."""
    return Partitions(split_point, backbone_of(graph, split_point), head_of(graph, split_point))


def backbone_of(graph: fx.GraphModule, split_point: SplitPoint) -> fx.GraphModule:
    """The partition before a split point; nothing is copied."""
    nodes = list(graph.graph.nodes)
    return extract(graph, nodes[1 : split_point.position], nodes[:1], live_values(nodes, split_point.position))


def head_of(graph: fx.GraphModule, split_point: SplitPoint) -> fx.GraphModule:
    """The partition behind a split point; nothing is copied."""
    nodes = list(graph.graph.nodes)
    return extract(graph, nodes[split_point.position : -1], live_values(nodes, split_point.position), results_of(nodes))


def results_of(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """What a graph gives, in order."""
    results: Any = nodes[-1].args[0]
    return list(results) if isinstance(results, (tuple, list)) else [results]


def extract(
    graph: fx.GraphModule, nodes: Sequence[fx.Node], inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """The nodes as a module of its own that shares the graph's parameters: inputs to a tuple of outputs."""
    part = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {node: part.placeholder(node.name) for node in inputs}

    def copy_of(node: fx.Node) -> fx.Node:
        if node not in copies:  # a constant traced on the other side of the split point
            copies[node] = part.node_copy(node, copy_of)
        return copies[node]

    for node in nodes:
        if node not in copies:
            copies[node] = part.node_copy(node, copy_of)
    part.output(tuple(copy_of(node) for node in outputs))
    return fx.GraphModule(graph, part)
