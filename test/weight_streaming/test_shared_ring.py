"""Partitions of several models take turns at one ring and one reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
from comparing import rounding
from odd_model import House
from torch import Tensor

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.partition_weights import Contents
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, place
from split_infer_ros.weight_streaming.ring_memory import RingMemory, page_aligned
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.weights_file import WeightsFile


@dataclass
class Shared:
    """A backbone and a head in a ring, and what each is to give for its inputs."""

    partitions: tuple[StreamedPartition, StreamedPartition]
    inputs: tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
    expected: tuple[Tensor, Tensor]
    pool_bytes: int

    def agrees(self, index: int) -> bool:
        with torch.inference_mode():
            (found,) = self.partitions[index](*self.inputs[index])
        wanted = self.expected[index]
        return rounding(found, wanted) <= 1e-5  # a tile of rows takes another kernel than the whole layer


@pytest.fixture(params=[1.0, 1.7, 4.0])
def shared(house: House, request: pytest.FixtureRequest) -> Iterator[Shared]:
    both = house.contents(), house.contents(head=True)
    ring_memory = RingMemory(page_aligned(int(request.param * max(max(each.sizes) for each in both)) // 4096 * 4096))
    with torch.inference_mode():
        features = tuple(house.model.backbone("default")(house.images[:1]))
        expected = house.resident(house.images[:1]), house.model.head("default")(*features)[0]
    partitions = half_in(ring_memory, both[0]), half_in(ring_memory, both[1])
    yield Shared(partitions, ((house.images[:1],), features), expected, ring_memory.nbytes)
    for partition in partitions:
        partition.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "weights"]


def half_in(ring_memory: RingMemory, contents: Contents) -> StreamedPartition:
    plan = place(ASYNCHRONOUS, contents.sizes, contents.uses, ring_memory.nbytes).plan
    return StreamedPartition(contents, plan, ring_memory=ring_memory)


@pytest.mark.parametrize("hint", ["none", "right", "wrong"])
def test_whoever_comes_next_each_gets_its_own_weights(shared: Shared, hint: str) -> None:
    order = [0, 1, 1, 0, 1, 0, 0, 1] * 3
    for turn, index in enumerate(order):
        if hint != "none":
            following = order[(turn + 1) % len(order)]
            shared.partitions[following if hint == "right" else 1 - following].expect()
        assert shared.agrees(index)
    assert all(partition.stats().passes == len(order) // 2 for partition in shared.partitions)


def test_threads_take_turns(shared: Shared) -> None:
    with ThreadPoolExecutor(2) as threads:
        runs = [threads.submit(shared.agrees, index % 2) for index in range(24)]
    assert all(run.result() for run in runs)


def test_what_is_expected_is_read_while_another_one_runs(shared: Shared) -> None:
    _, second = shared.partitions
    assert shared.agrees(0)
    before = second.stats().bytes_read
    second.expect()
    assert shared.agrees(0)
    for _ in range(1000):
        if second.stats().bytes_read > before:
            break
        threading.Event().wait(0.005)
    assert second.stats().bytes_read > before


def test_a_half_that_fails_or_goes_costs_the_other_nothing(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    _, second = shared.partitions
    plain = WeightsFile.read

    def fail(self: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
        if self is second._stage.file:  # type: ignore[union-attr]
            raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"Layer '{layer}' cannot be read.")
        plain(self, offset, into, layer)

    monkeypatch.setattr(WeightsFile, "read", fail)
    for _ in range(3):
        second.expect()
        assert shared.agrees(0)
        with pytest.raises(StreamError, match="cannot be read"):
            shared.agrees(1)
    monkeypatch.undo()
    assert shared.agrees(1)
    second.expect()
    second.close()
    assert shared.agrees(0)
    assert shared.agrees(0)
