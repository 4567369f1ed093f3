"""A model in pieces, one between each two neighbouring split points, for timing all split points in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from split_infer_ros.split.partitions import extract
from split_infer_ros.split.split_points import SplitPoint, live_values


def segments(graph: fx.GraphModule, split_points: Sequence[SplitPoint]) -> tuple[fx.GraphModule, ...]:
    """The pieces in order: each takes the tensors of one split point and gives a tuple of those of the next."""
    nodes = list(graph.graph.nodes)
    crossing = [live_values(nodes, split_point.position) for split_point in split_points]
    return tuple(
        extract(
            graph,
            nodes[split_points[index].position : split_points[index + 1].position],
            crossing[index],
            crossing[index + 1],
        )
        for index in range(len(split_points) - 1)
    )
