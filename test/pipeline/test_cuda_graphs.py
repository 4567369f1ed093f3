"""The graph that runs each batch. Recording itself needs a GPU, real or simulated."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from split_infer_ros.pipeline import cuda_graphs
from split_infer_ros.pipeline.cuda_graphs import GraphedBackbone, graph_sizes


@given(st.integers(1, 300))
def test_each_graph_size_is_at_most_twice_the_one_before(batch_size: int) -> None:
    sizes = graph_sizes(batch_size)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == batch_size
    assert all(larger <= 2 * smaller for smaller, larger in itertools.pairwise(sizes))


class FakeCapture:
    """Stands in for a capture: each launch runs the work again and writes into the same results."""

    launched: ClassVar[list[int]] = []

    def __init__(self, run: Callable[[], Sequence[Tensor]], *_: object) -> None:
        self._run = run
        self.results = run()

    def launch(self) -> None:
        self.launched.append(len(self.results[0]))
        for result, new in zip(self.results, self._run(), strict=True):
            result.copy_(new)


@pytest.mark.parametrize(("count", "recorded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6)])
def test_batch_runs_as_the_next_larger_graph(count: int, recorded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "capture", FakeCapture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(FakeCapture, "launched", [])
    backbone = GraphedBackbone.record(lambda x: (2 * x, x.sum(dim=(1, 2, 3))), torch.zeros(6, 3, 2, 2))
    images = torch.randint(1000, (count, 3, 2, 2)).float()  # sums of whole numbers are exact
    doubled, sums = backbone(images)
    assert FakeCapture.launched == [recorded]
    assert torch.equal(doubled, 2 * images)
    assert torch.equal(sums, images.sum(dim=(1, 2, 3)))
