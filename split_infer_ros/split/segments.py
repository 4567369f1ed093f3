"""A model in pieces, one between each two neighbouring cuts, for timing all cuts in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from split_infer_ros.split.partitions import extract
from split_infer_ros.split.split_points import Cut, live_values


def segments(graph: fx.GraphModule, cuts: Sequence[Cut]) -> tuple[fx.GraphModule, ...]:
    """The pieces in order: each takes the tensors of one cut and gives a tuple of those of the next."""
    nodes = list(graph.graph.nodes)
    crossing = [live_values(nodes, cut.position) for cut in cuts]
    return tuple(
        extract(graph, nodes[cuts[index].position : cuts[index + 1].position], crossing[index], crossing[index + 1])
        for index in range(len(cuts) - 1)
    )
