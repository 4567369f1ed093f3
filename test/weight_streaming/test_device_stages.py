"""Supplies of weights to an asynchronous device, simulated on the CPU: its work is done when a fence is waited for."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch
from all_layers_model import PackedModel
from lost_device import AcceleratorError, refuse
from networks import graph_of, network_of
from torch import Tensor

from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.runtime.streams import Fence, Mark
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.mapped_stage import MappedStage
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_partition import open_packed
from split_infer_ros.weight_streaming.prefetcher import TIMEOUT_S
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_memory import (
    CopiedRingMemory,
    MappedRingMemory,
    RingMemory,
    page_aligned,
)
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.weights_file import WeightsFile


class CountingFence(Fence):
    """A fence that counts how often any of its kind was waited for."""

    waits = 0

    def wait(self) -> None:
        CountingFence.waits += 1


class LostFence(Fence):
    """A fence of a lost device."""

    def wait(self) -> None:
        refuse()


class HostMark(Mark):
    """A moment of the host, which stands for one of the device."""

    def __init__(self) -> None:
        self.at = time.perf_counter()

    def wait(self) -> None:
        """Waits for nothing: the host has done its work."""

    def seconds_until(self, later: Mark) -> float:
        assert isinstance(later, HostMark)
        return later.at - self.at


def copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


DEVICE_OPS = DeviceOps(copy, CountingFence, HostMark)


def ring_memory_of(memory_plan: MemoryPlan, ops: DeviceOps) -> RingMemory:
    """Two rings on the host if blocks are copied, or one that both sides see."""
    capacity = memory_plan.ring.capacity
    host = page_aligned(capacity)
    if memory_plan.staging is None:
        return MappedRingMemory(Memory(Policy.PINNED, host, host), ops)
    return CopiedRingMemory(Memory(Policy.DEVICE, host, page_aligned(capacity)), ops)


@pytest.fixture(scope="module")
def plain(packed_model: PackedModel) -> PackedModel:
    """The model with a file for a GPU."""
    path = packed_model.path.with_name("gpu.weights")
    pack_model(network_of(packed_model.model), path, num_threads=None, tile_mb=0.05)
    return PackedModel(packed_model.model, path, packed_model.images)


def streamed(
    plain: PackedModel,
    residency: Residency,
    is_copied: bool,
    *,
    ops: DeviceOps = DEVICE_OPS,
    timeout_s: float = TIMEOUT_S,
    is_timed: bool = False,
) -> StreamedPartition:
    packed = open_packed(network_of(plain.model), graph_of(plain.model), plain.path, num_threads=None)
    memory_plan = plan_memory(residency, packed.block_sizes, packed.step_blocks, is_copied=is_copied)
    ring_memory = ring_memory_of(memory_plan, ops)
    return StreamedPartition.open(
        packed, memory_plan, timeout_s=timeout_s, ring_memory=ring_memory, mark=HostMark if is_timed else None
    )


@pytest.mark.parametrize(
    ("residency", "is_copied"),
    [
        (Residency.TWO_STAGE, False),
        (Residency.TWO_STAGE, True),
        (Residency.ASYNCHRONOUS, True),
        (Residency.SYNCHRONOUS, True),
    ],
)
def test_device_gets_the_weights_of_each_step(plain: PackedModel, residency: Residency, is_copied: bool) -> None:
    partition = streamed(plain, residency, is_copied)
    waits_before = CountingFence.waits
    with torch.inference_mode():
        for image in [*plain.images, *plain.images]:
            found = partition(image[None])
            expected = graph_of(plain.model)(image[None])
            # A tile of rows uses another kernel than the whole layer, which rounds otherwise.
            torch.testing.assert_close(found if isinstance(found, Tensor) else found[0], expected, rtol=1e-5, atol=1e-5)
    assert CountingFence.waits > waits_before
    partition.close()


@pytest.mark.parametrize(
    ("residency", "is_copied"),
    [(Residency.TWO_STAGE, False), (Residency.ASYNCHRONOUS, True), (Residency.SYNCHRONOUS, True)],
)
def test_failed_pass_is_followed_by_a_sound_one(
    plain: PackedModel, residency: Residency, is_copied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = streamed(plain, residency, is_copied)
    read = WeightsFile.read

    def fail(self: WeightsFile, offset: int, memory: memoryview, layer: str) -> None:
        raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"Layer '{layer}' cannot be read.")

    with torch.inference_mode():
        expected = partition(plain.images[:1])
        monkeypatch.setattr(WeightsFile, "read", fail)
        failures = 0
        for _ in range(5):
            try:
                partition(plain.images[:1])
            except StreamError:
                failures += 1
        assert failures >= 3
        monkeypatch.setattr(WeightsFile, "read", read)
        for _ in range(3):  # weights that were read ahead may fail once more
            try:
                found = partition(plain.images[:1])
            except StreamError:
                continue
    torch.testing.assert_close(found, expected, rtol=0, atol=0)  # the same partition with the same weights
    partition.close()


THREE_STAGES = pytest.mark.parametrize("residency", [Residency.ASYNCHRONOUS, Residency.SYNCHRONOUS])


@THREE_STAGES
def test_failed_copy_costs_only_its_pass(plain: PackedModel, residency: Residency) -> None:
    failures = iter([True])

    def copy_or_fail(target: Tensor, source: Tensor) -> None:
        if next(failures, False):
            raise RuntimeError("CUDA error: invalid argument")
        target.copy_(source)

    partition = streamed(plain, residency, True, ops=DeviceOps(copy_or_fail, CountingFence, HostMark))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="invalid argument"):
        partition(plain.images[:1])
    with torch.inference_mode():
        found = partition(plain.images[:1])
        expected = partition(plain.images[:1])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)  # the same operations on the same memory
    partition.close()


@THREE_STAGES
def test_endless_copy_fails_its_pass_in_time(plain: PackedModel, residency: Residency) -> None:
    released = threading.Event()
    ops = DeviceOps(lambda target, source: float(released.wait(30.0)), CountingFence, HostMark)
    partition = streamed(plain, residency, True, ops=ops, timeout_s=0.2)
    with torch.inference_mode(), pytest.raises(StreamError, match=r"did not reach the device within 0\.[24] s"):
        partition(plain.images[:1])
    released.set()
    partition.close()


@THREE_STAGES
def test_closing_ends_a_step_that_waits(plain: PackedModel, residency: Residency) -> None:
    released = threading.Event()
    ops = DeviceOps(lambda target, source: float(released.wait(30.0)), CountingFence, HostMark)
    partition = streamed(plain, residency, True, ops=ops)
    closing = threading.Timer(0.3, partition.close)  # which itself waits for the copy
    closing.start()
    with torch.inference_mode(), pytest.raises(StreamError, match=r"was closed\."):
        partition(plain.images[:1])
    released.set()
    closing.join()


def test_pass_on_a_lost_device_does_not_block_the_next() -> None:
    failures: list[bool] = []
    prefetcher = SimpleNamespace(begin_pass=print, free=print, end_pass=lambda reader, failed: failures.append(failed))
    reader = SimpleNamespace(plan=SimpleNamespace(chunks_freed=(0, 0)), end_pass=bool)
    ops = DeviceOps(copy=print, fence=LostFence, mark=HostMark)
    stage = MappedStage(prefetcher, reader, ops)  # type: ignore[arg-type]
    for _ in range(2):
        stage.begin_pass()
        stage.end_step(0)
        stage.end_step(1)
        with pytest.raises(AcceleratorError):
            stage.end_pass(failed=False)
    assert failures == [True, True]  # each pass freed the ring as a failed one


@pytest.mark.parametrize("is_copied", [False, True])
def test_device_takes_the_times_of_each_step(plain: PackedModel, is_copied: bool) -> None:
    partition = streamed(plain, Residency.ASYNCHRONOUS, is_copied, is_timed=True)
    steps = len(open_packed(network_of(plain.model), graph_of(plain.model), plain.path, num_threads=None).step_blocks)
    with torch.inference_mode():
        for _ in range(2):
            start = time.perf_counter()
            partition(plain.images[:1])
            seconds = time.perf_counter() - start
            times = partition.times
            assert times is not None
            assert len(times.step_s) == steps
            assert 0 < sum(times.step_s) + times.tail_s + times.stalled_s <= seconds
    stats = partition.stats()
    assert (stats.bytes_copied > 0, stats.copying_s > 0) == (is_copied, is_copied)
    partition.close()
