"""Batch sizes in traced graphs are read where they are needed."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from split_infer_ros.torch_graphs.batch_sizes import read_sizes_where_needed


def late(images: Tensor) -> Tensor:
    """Reads the batch size and the device at the start, and needs both at the end."""
    number, device = images.size(0), images.device
    rows = images.relu().flatten(1)
    rows = rows * 2
    sizes = torch.ones(number + 1, device=device)
    return rows.sum(1) + sizes[1:] * number


def crossing(graph: fx.GraphModule, place: str) -> set[str]:
    """The nodes that are alive behind a node."""
    nodes = list(graph.graph.nodes)
    position = next(index for index, node in enumerate(nodes) if node.name == place) + 1
    return {node.name for node in nodes[:position] if any(user in nodes[position:] for user in node.users)}


def test_no_number_crosses_the_model() -> None:
    """The same operations on the same numbers: results are equal bit by bit."""
    graph = fx.symbolic_trace(late)
    assert len(crossing(graph, "mul")) > 1
    read_sizes_where_needed(
        graph.graph, [node for node in graph.graph.nodes if node.name in ("images", "relu", "flatten", "mul")]
    )
    graph.graph.eliminate_dead_code()
    graph.recompile()
    graph.graph.lint()
    assert crossing(graph, "mul") == {"mul"}
    for count in (1, 3):
        images = torch.randn((count, 4, 2), generator=torch.Generator().manual_seed(count))
        torch.testing.assert_close(graph(images), late(images), rtol=0, atol=0)


def test_other_lengths_stay_where_they_are() -> None:
    def shaped(images: Tensor) -> Tensor:
        return images.relu().reshape(-1, images.size(1))

    graph = fx.symbolic_trace(shaped)
    before = str(graph.graph)
    read_sizes_where_needed(graph.graph, list(graph.graph.nodes))
    assert str(graph.graph) == before
