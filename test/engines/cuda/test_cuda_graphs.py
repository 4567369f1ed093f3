"""The graph that runs each batch. Recording itself needs a GPU, real or simulated."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec, strides_of
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.cuda import cuda_graphs
from split_infer_ros.engines.cuda.cuda_graphs import MAX_GRAPHS, GraphedBackbone, graph_sizes
from split_infer_ros.runtime.device import CPU


@given(st.integers(1, 300))
def test_each_graph_size_is_at_most_twice_the_one_before(batch_size: int) -> None:
    sizes = graph_sizes(batch_size)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == batch_size
    assert all(larger <= 2 * smaller for smaller, larger in itertools.pairwise(sizes))


@given(st.integers(1, 300), st.integers(1, 64))
def test_many_slots_have_fewer_sizes(batch_size: int, num_slots: int) -> None:
    sizes = graph_sizes(batch_size, num_slots)
    assert len(sizes) * num_slots <= MAX_GRAPHS or len(sizes) == 1
    assert sizes[-1] == batch_size
    assert set(sizes) <= set(graph_sizes(batch_size))


class FakeCapture:
    """Stands in for a capture: each launch runs the work again and writes into the same memory."""

    launched: ClassVar[list[int]] = []
    bytes = 0

    def __init__(self, run: Callable[[], Any], stream: object, pool: object, *, warm_ups: int) -> None:
        assert isinstance(run, partial)
        self._run = run
        self.results = run()

    def launch(self) -> None:
        self.launched.append(len(self._run.args[-1]))
        self._run()


@pytest.fixture(autouse=True)
def fake_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "capture", FakeCapture)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(FakeCapture, "launched", [])


def double_and_sum(images: Tensor) -> tuple[Tensor, Tensor]:
    return 2 * images, images.sum(dim=(1, 2, 3))


SPECS = (TensorSpec("doubled", (3, 2, 2), FLOAT32), TensorSpec("sums", (), FLOAT32))


@pytest.mark.parametrize(("count", "recorded"), [(1, 1), (2, 2), (3, 4), (4, 4), (5, 6), (6, 6)])
def test_batch_runs_as_the_next_larger_graph_of_its_slot(count: int, recorded: int) -> None:
    slots = SlotMemory.allocate(Layout(SPECS, 6), 2, Place(), make=lambda _, place: allocate(place.policy, 4096, CPU))
    backbone = GraphedBackbone.record(double_and_sum, slots, 2, torch.zeros(6, 3, 2, 2))
    FakeCapture.launched.clear()  # each graph was launched once, which uploads it
    images = [torch.randint(1000, (count, 3, 2, 2)).float() for _ in range(2)]  # sums of whole numbers are exact
    for slot, batch in enumerate(images):
        backbone.input_of(slot).images[:count] = batch
        backbone.run_into_slot(slot, count)
    assert FakeCapture.launched == [recorded, recorded]
    for slot, batch in enumerate(images):
        doubled, sums = slots.views(slot, count)
        assert np.array_equal(doubled, 2 * batch)
        assert np.array_equal(sums, batch.sum(dim=(1, 2, 3)))


def test_slot_has_the_strides_that_its_graph_writes() -> None:
    slots = SlotMemory.allocate(Layout(SPECS, 2), 1, Place(), make=lambda _, place: allocate(place.policy, 4096, CPU))
    example = torch.zeros(2, 3, 2, 2).contiguous(memory_format=torch.channels_last)
    backbone = GraphedBackbone.record(double_and_sum, slots, 1, example)
    slots.set_strides(0, None)
    backbone.run_into_slot(0, 1)
    assert strides_of(slots.views(0, 1)[0]) == (12, 1, 6, 3)
