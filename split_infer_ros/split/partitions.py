"""Splits a traced model at a split point into its backbone partition and its head partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.split.traced_split_points import live_values


def backbone_of(graph: fx.GraphModule, split_point: SplitPoint) -> fx.GraphModule:
    """Returns the partition before a split point. It shares the graph's modules and weights."""
    nodes = list(graph.graph.nodes)
    return extract(
        graph,
        nodes[1 : split_point.position],
        inputs=nodes[:1],
        outputs=live_values(nodes, split_point.position),
    )


def head_of(graph: fx.GraphModule, split_point: SplitPoint) -> fx.GraphModule:
    """Returns the partition behind a split point. It shares the graph's modules and weights."""
    nodes = list(graph.graph.nodes)
    return extract(
        graph,
        nodes[split_point.position : -1],
        inputs=live_values(nodes, split_point.position),
        outputs=outputs_of(nodes),
    )


def outputs_of(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """Returns the nodes whose values a graph returns, in order."""
    outputs: Any = nodes[-1].args[0]
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def extract(
    graph: fx.GraphModule, nodes: Sequence[fx.Node], *, inputs: Sequence[fx.Node], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """Returns a part of a graph as a module. It shares the graph's modules and weights.

    Args:
        graph: the whole graph.
        nodes: the part's nodes, in order. Constants that they use may lie elsewhere in the graph.
        inputs: the nodes whose values the part takes.
        outputs: the nodes whose values the part returns, as a tuple.
    """
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
