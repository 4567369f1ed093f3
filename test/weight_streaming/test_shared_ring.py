"""Partitions of several models take turns at one ring and one prefetcher."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from all_layers_model import PackedModel
from comparisons import rounding
from torch import Tensor

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.packed_partition import PackedPartition
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_memory import RingMemory, page_aligned
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.weights_file import WeightsFile

pytestmark = pytest.mark.numeric


@dataclass
class SharedRing:
    """A backbone and a head in one ring, with inputs and expected results, and the files that they read."""

    partitions: tuple[StreamedPartition, StreamedPartition]
    inputs: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
    expected: tuple[Tensor, Tensor]
    files: tuple[WeightsFile, ...]

    def agrees(self, index: int) -> bool:
        with torch.inference_mode():
            (found,) = self.partitions[index](*self.inputs[index])
        wanted = self.expected[index]
        return rounding(found, wanted) <= 1e-5  # a tile of rows uses another kernel than the whole layer


@pytest.fixture(params=[1.0, 1.7, 4.0])
def shared(packed_model: PackedModel, request: pytest.FixtureRequest) -> Iterator[SharedRing]:
    backbone, head = packed_model.packed(), packed_model.packed(head=True)
    largest = max(*backbone.block_sizes, *head.block_sizes)
    ring_memory = RingMemory(page_aligned(int(request.param * largest) // PAGE * PAGE))
    with torch.inference_mode():
        features = tuple(packed_model.model.backbone("default")(packed_model.images[:1]))
        expected = packed_model.resident(packed_model.images[:1]), packed_model.model.head("default")(*features)[0]
    files: list[WeightsFile] = []

    def open_file(path: Path) -> WeightsFile:
        files.append(WeightsFile.open(path))
        return files[-1]

    partitions = open_in(ring_memory, backbone, open_file), open_in(ring_memory, head, open_file)
    assert len(files) == 2
    yield SharedRing(partitions, ((packed_model.images[:1],), features), expected, tuple(files))
    for partition in partitions:
        partition.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "weight_prefetcher"]


def open_in(
    ring_memory: RingMemory, packed: PackedPartition, open_file: Callable[[Path], WeightsFile]
) -> StreamedPartition:
    memory_plan = plan_memory(
        Residency.ASYNCHRONOUS, packed.block_sizes, packed.step_blocks, budget_bytes=ring_memory.nbytes
    )
    return StreamedPartition.open(packed, memory_plan, ring_memory=ring_memory, open_file=open_file)


@pytest.mark.parametrize("hint", ["none", "right", "wrong"])
def test_each_partition_gets_its_own_weights_in_any_order(shared: SharedRing, hint: str) -> None:
    order = [0, 1, 1, 0, 1, 0, 0, 1] * 3
    for turn, index in enumerate(order):
        if hint != "none":
            following = order[(turn + 1) % len(order)]
            shared.partitions[following if hint == "right" else 1 - following].expect_next()
        assert shared.agrees(index)
    assert all(partition.stats().passes == len(order) // 2 for partition in shared.partitions)


def test_threads_take_turns_at_the_ring(shared: SharedRing) -> None:
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(shared.agrees, index % 2) for index in range(24)]
    assert all(run.result() for run in runs)


def test_announced_partition_is_read_while_another_runs(shared: SharedRing) -> None:
    _, second = shared.partitions
    assert shared.agrees(0)
    before = second.stats().bytes_read
    second.expect_next()
    assert shared.agrees(0)
    for _ in range(1000):
        if second.stats().bytes_read > before:
            break
        threading.Event().wait(0.005)
    assert second.stats().bytes_read > before


def test_failing_or_closed_partition_does_not_affect_the_other(
    shared: SharedRing, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = shared.partitions
    plain = WeightsFile.read

    def fail(self: WeightsFile, offset: int, memory: memoryview, layer: str) -> None:
        if self is shared.files[1]:
            raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"Layer '{layer}' cannot be read.")
        plain(self, offset, memory, layer)

    monkeypatch.setattr(WeightsFile, "read", fail)
    for _ in range(3):
        second.expect_next()
        assert shared.agrees(0)
        with pytest.raises(StreamError, match="cannot be read"):
            shared.agrees(1)
    monkeypatch.undo()
    assert shared.agrees(1)
    second.expect_next()
    second.close()
    assert shared.agrees(0)
    assert shared.agrees(0)
