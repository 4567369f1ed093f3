"""Splits a traced model: at a split point into backbone and head, or at all of them into segments."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import fx

from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.split.traced_split_points import live_values


def backbone_of(graph: fx.GraphModule, split_point: SplitPoint) -> fx.GraphModule:
    """Returns the partition before a split point. It shares the graph's modules and weights."""
    nodes = list(graph.graph.nodes)
    end = split_point.position
    return extract(graph, nodes[1:end], inputs=nodes[:1], outputs=live_values(nodes, end))


def head_of(graph: fx.GraphModule, split_point: SplitPoint) -> fx.GraphModule:
    """Returns the partition behind a split point. It shares the graph's modules and weights."""
    nodes = list(graph.graph.nodes)
    begin = split_point.position
    return extract(graph, nodes[begin:-1], inputs=live_values(nodes, begin), outputs=outputs_of(nodes))


def split_into_segments(graph: fx.GraphModule, split_points: Sequence[SplitPoint]) -> tuple[fx.GraphModule, ...]:
    """Splits a model between neighbouring split points, so that one pass times all split points.

    Returns the segments in order. Each maps the tensors of one split point to a tuple of those of the next.
    """
    nodes = list(graph.graph.nodes)
    return tuple(
        extract(
            graph,
            nodes[first.position : last.position],
            inputs=live_values(nodes, first.position),
            outputs=live_values(nodes, last.position),
        )
        for first, last in itertools.pairwise(split_points)
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
