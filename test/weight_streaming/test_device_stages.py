"""The ways of weights to a device that works behind, played by the CPU: it is done when its fences are waited for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from lost_device import AcceleratorError, refuse
from odd_model import House
from torch import Tensor

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.device_stages import CopyStage, MappedStage, Processor
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.partition_weights import open_contents
from split_infer_ros.weight_streaming.prefetcher import STALL_S
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, SYNCHRONOUS, TWO_STAGE, place
from split_infer_ros.weight_streaming.ring import CHUNK, RingPlan, circular
from split_infer_ros.weight_streaming.ring_memory import RingMemory, page_aligned
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.weight_stream import WeightStream
from split_infer_ros.weight_streaming.weights_file import Block, WeightsFile


class Simulated:
    """A fence that counts how often it is waited for."""

    waited = 0

    def wait(self) -> None:
        Simulated.waited += 1


def copy(into: Tensor, source: Tensor) -> None:
    into.copy_(source)


PROCESSOR = Processor(copy, Simulated)


class SimulatedRingMemory(RingMemory):
    """Two rings, or one that both sides see."""

    def __init__(self, capacity: int, copied: bool, processor: Processor = PROCESSOR) -> None:
        super().__init__(page_aligned(capacity), page_aligned(capacity) if copied else None)
        self._copied = copied
        self._processor = processor

    def stage(
        self, file: WeightsFile, plan: RingPlan, blocks: Sequence[Block], stall_s: float
    ) -> MappedStage | CopyStage:
        if not self._copied:
            return MappedStage(WeightStream(self._reader, file, plan, blocks, stall_s), self._processor)
        sizes = [block.nbytes for block in blocks]
        source = circular(sizes, range(len(blocks)), len(self._host))

        def slices(ring: Tensor, offsets: Sequence[int]) -> list[Tensor]:
            return [ring[offset : offset + size] for offset, size in zip(offsets, sizes, strict=True)]

        rings = slices(self._host, source.offsets), slices(self.ring, plan.offsets)
        return CopyStage(
            WeightStream(self._reader, file, source, blocks, stall_s), *rings, plan, self._processor, stall_s
        )


@pytest.fixture(scope="module")
def plain(house: House) -> House:
    """The file as a GPU has it."""
    path = house.path.with_name("gpu.weights")
    pack_model(house.model, path, None, tile_mb=0.05)
    return House(house.model, path, house.images)


def streamed(
    plain: House, residency: str, copied: bool, processor: Processor = PROCESSOR, stall_s: float = STALL_S
) -> StreamedPartition:
    contents = open_contents(plain.model, plain.model.graph, plain.path, None)
    chunk = max(contents.sizes) if copied else CHUNK
    plan = place(residency, contents.sizes, contents.uses, chunk=chunk).plan
    return StreamedPartition(
        contents, plan, stall_s=stall_s, ring_memory=SimulatedRingMemory(plan.capacity, copied, processor)
    )


@pytest.mark.parametrize(
    ("residency", "copied"), [(TWO_STAGE, False), (TWO_STAGE, True), (ASYNCHRONOUS, True), (SYNCHRONOUS, True)]
)
def test_a_device_gets_what_the_layers_need(plain: House, residency: str, copied: bool) -> None:
    partition = streamed(plain, residency, copied)
    before = Simulated.waited
    with torch.inference_mode():
        for image in [*plain.images, *plain.images]:
            found = partition(image[None])
            expected = plain.model.graph(image[None])
            # but for rounding: a tile of rows takes another kernel than the whole layer
            torch.testing.assert_close(found if isinstance(found, Tensor) else found[0], expected, rtol=1e-5, atol=1e-5)
    assert Simulated.waited > before
    partition.close()


@pytest.mark.parametrize("copied", [False, True])
def test_a_failed_pass_is_followed_by_a_sound_one(plain: House, copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = streamed(plain, TWO_STAGE, copied)
    read = WeightsFile.read

    def fail(self: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
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
        for _ in range(3):  # what was read ahead may fail once more
            try:
                found = partition(plain.images[:1])
            except StreamError:
                continue
    torch.testing.assert_close(found, expected, rtol=0, atol=0)  # the same half with the same weights
    partition.close()


def test_a_copy_that_fails_costs_its_pass_only(plain: House) -> None:
    fails = iter([True])

    def copy_or_fail(into: Tensor, source: Tensor) -> None:
        if next(fails, False):
            raise RuntimeError("CUDA error: invalid argument")
        into.copy_(source)

    partition = streamed(plain, ASYNCHRONOUS, True, Processor(copy_or_fail, Simulated))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="invalid argument"):
        partition(plain.images[:1])
    with torch.inference_mode():
        found = partition(plain.images[:1])
        expected = partition(plain.images[:1])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)  # the same operations on the same memory
    partition.close()


def test_a_copy_that_never_ends_fails_its_pass_in_time(plain: House) -> None:
    released = threading.Event()
    partition = streamed(
        plain, ASYNCHRONOUS, True, Processor(lambda into, source: float(released.wait(30.0)), Simulated), stall_s=0.2
    )
    with torch.inference_mode(), pytest.raises(StreamError, match=r"did not come to the device within 0\.2 s"):
        partition(plain.images[:1])
    released.set()
    partition.close()


def test_a_step_that_waits_ends_with_its_half(plain: House) -> None:
    released = threading.Event()
    partition = streamed(
        plain, ASYNCHRONOUS, True, Processor(lambda into, source: float(released.wait(30.0)), Simulated)
    )
    closing = threading.Timer(0.3, partition.close)  # which itself waits for the copy
    closing.start()
    with torch.inference_mode(), pytest.raises(StreamError, match=r"was closed\."):
        partition(plain.images[:1])
    released.set()
    closing.join()


def test_a_pass_that_met_a_lost_device_does_not_hold_up_the_next() -> None:
    finished: list[bool] = []
    weight_stream = SimpleNamespace(start=print, begin=print, end=print, has=bool, finish=finished.append)
    stage = MappedStage(weight_stream, Processor(copy=print, fence=lambda: SimpleNamespace(wait=refuse)))  # type: ignore[arg-type]
    for _ in range(2):
        stage.start()
        stage.end(0)
        stage.end(1)
        with pytest.raises(AcceleratorError):
            stage.finish(False)
    assert finished == [True, True]  # each gave up the ring, as one that failed
