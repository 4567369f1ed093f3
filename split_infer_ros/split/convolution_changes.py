"""Divides a graph at the places behind which convolutions run in another way. Within a part, they run alike."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import fx

from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.split.partitions import extract, outputs_of
from split_infer_ros.split.traced_split_points import live_values


class ConvolutionChanges:
    """How convolutions run in each segment of a graph.

    Args:
        graph: the whole model.
        ends: pairs in order: how convolutions run, and the position up to which they run in this way. A position is the
            number of the graph's nodes before a place.
        behind: how convolutions run behind the last position of ``ends``.
    """

    def __init__(self, graph: fx.GraphModule, ends: Sequence[tuple[Convolutions, int]], behind: Convolutions) -> None:
        self._graph, self._ends, self._behind = graph, ends, behind

    def divide(
        self, partition: fx.GraphModule, *, first: int, last: int | None = None
    ) -> list[tuple[Convolutions, fx.GraphModule]]:
        """Divides a partition into parts in which all convolutions run alike.

        Args:
            partition: the nodes from ``first`` up to, not including, ``last``.
            first, last: positions in the graph; None is the end of the graph.

        Returns:
            The parts in order, each with the way in which its convolutions run.
        """
        nodes = list(self._graph.graph.nodes)
        if last is None:
            last = len(nodes) - 1
        inner_ends = [end for _, end in self._ends if first < end < last]
        if not inner_ends:
            return [(self.kind_before(last), partition)]
        parts = []
        for start, end in itertools.pairwise([first, *inner_ends, last]):
            outputs = live_values(nodes, end) if end < len(nodes) - 1 else outputs_of(nodes)
            part = extract(self._graph, nodes[start:end], inputs=live_values(nodes, start), outputs=outputs)
            parts.append((self.kind_before(end), part))
        return parts

    def kind_before(self, position: int) -> Convolutions:
        """Returns how convolutions run in the segment that holds the node just before a position."""
        return next((kind for kind, end in self._ends if position <= end), self._behind)
