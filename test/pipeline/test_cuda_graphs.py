"""Which graph runs for which batch; recording itself needs a GPU (test/gpu)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from split_infer_ros.pipeline.cuda_graphs import GraphedBackbone, graph_sizes


@given(st.integers(1, 300))
def test_sizes_are_few_and_the_next_larger_one_is_less_than_twice_too_large(batch_size: int) -> None:
    sizes = graph_sizes(batch_size)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == batch_size
    assert all(larger <= 2 * smaller for smaller, larger in itertools.pairwise(sizes))


class Recorder:
    """As a GPU: what was recorded writes into the same memory at each replay, for its own batch size."""

    def __init__(self) -> None:
        self.replayed: list[int] = []

    def __call__(self, run: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        results = run()

        def replay() -> None:
            self.replayed.append(len(results[0]))
            for result, new in zip(results, run(), strict=True):
                result.copy_(new)

        return replay, results


@pytest.mark.parametrize(("count", "recorded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6)])
def test_a_batch_runs_as_the_next_larger_graph_and_gets_its_own_results(count: int, recorded: int) -> None:
    recorder = Recorder()
    backbone = GraphedBackbone(lambda x: (2 * x, x.sum(dim=(1, 2, 3))), torch.zeros(6, 3, 2, 2), recorder)
    images = torch.rand(count, 3, 2, 2)
    doubled, sums = backbone(images)
    assert recorder.replayed == [recorded]
    assert torch.equal(doubled, 2 * images)
    assert torch.equal(sums, images.sum(dim=(1, 2, 3)))
