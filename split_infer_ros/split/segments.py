"""Splits a model into the segments between neighbouring split points, so that one pass times all split points."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import fx

from split_infer_ros.split.partitions import extract
from split_infer_ros.split.split_points import SplitPoint
from split_infer_ros.split.traced_split_points import live_values


def split_into_segments(graph: fx.GraphModule, split_points: Sequence[SplitPoint]) -> tuple[fx.GraphModule, ...]:
    """Returns the segments in order. Each maps the tensors of one split point to a tuple of those of the next."""
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
