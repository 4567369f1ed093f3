"""In the synchronous pipeline, all stages begin their next block together."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from brightness_models import LONG_S
from torch import Tensor

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.runtime.streams import Fence
from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.device_supply import BlockPlaces
from split_infer_ros.weight_streaming.lockstep_stage import LockstepStage
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE, Piece
from split_infer_ros.weight_streaming.prefetcher import WeightPrefetcher
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_memory import block_views, byte_view, page_aligned
from split_infer_ros.weight_streaming.weight_stream import WeightStream, WeightSupply
from split_infer_ros.weight_streaming.weights_file import Block

PASSES = 3
NUMBERS_OF_BLOCKS = pytest.mark.parametrize("count", [1, 2, 3, 4])
BEGINS, ENDS = 0, 1


def copy(target: Tensor, source: Tensor) -> None:
    target.copy_(source)


OPS = DeviceOps(copy, Fence, mark=pytest.fail)


@dataclass
class Log:
    """The order in which each stage's work began and ended."""

    times: dict[str, list[list[int]]] = field(default_factory=dict)  # by stage: [begin, end] of each of its blocks
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, stage: str) -> None:
        with self.lock:
            self.now += 1
            self.times.setdefault(stage, []).append([self.now])

    def end(self, stage: str) -> None:
        with self.lock:
            self.now += 1
            self.times[stage][-1].append(self.now)

    def check(self, stages: list[str], count: int) -> None:
        """Checks that each stage begins a block after all stages have ended the blocks of the cycle before.

        Args:
            stages: the last of which is one block ahead of the one before it, and so on.
            count: of blocks in a pass. An odd number has an empty cycle after it.
        """
        cycles = count + count % 2
        at = {}
        for lead, stage in enumerate(stages):
            for number, times in enumerate(self.times[stage]):
                if len(times) == 2:  # else it had not ended
                    passes, block = divmod(number, count)
                    at[stage, passes * cycles + block - lead] = times
        checked = 0
        for (_, cycle), times in at.items():
            for other in stages:
                if (other, cycle - 1) in at:
                    assert at[other, cycle - 1][ENDS] < times[BEGINS], (other, cycle)
                    checked += 1
        assert checked >= PASSES


@dataclass
class LoggedFence(Fence):
    """The end of a step on a device that takes some time."""

    log: Log
    pause: random.Random
    is_waited_for: bool = False

    def wait(self) -> None:
        time.sleep(self.pause.uniform(0, 2e-3))
        if not self.is_waited_for:
            self.log.end("run")
        self.is_waited_for = True


class LoggedFile:
    """A file whose reads take some time. Each block holds its number."""

    path = Path("logged.weights")

    def __init__(self, log: Log) -> None:
        self.log = log
        self.pause = random.Random(1)
        self.is_closed = False

    def read(self, offset: int, memory: memoryview, layer: str) -> None:
        self.log.begin("read")
        time.sleep(self.pause.uniform(0, 2e-3))
        memory[:] = bytes([offset // PAGE]) * len(memory)
        self.log.end("read")

    def check(self, block: Block, memory: memoryview) -> None:
        assert set(memory) == {block.offset // PAGE}

    def close(self) -> None:
        self.is_closed = True


def blocks_of(count: int) -> list[Block]:
    return [Block((Piece(f"layer {number}", 0, number * PAGE, PAGE, 0, ()),)) for number in range(count)]


def plan_of(count: int, is_copied: bool) -> MemoryPlan:
    return plan_memory(Residency.SYNCHRONOUS, [PAGE] * count, range(count), is_copied=is_copied)


def open_lockstep(count: int, file: Any, ops: DeviceOps) -> tuple[LockstepStage, list[Tensor]]:
    plan = plan_of(count, is_copied=True)
    assert plan.staging is not None
    host, device = page_aligned(plan.staging.capacity), page_aligned(plan.ring.capacity)
    device_blocks = block_views(device, plan.ring, [PAGE] * count)
    stage = LockstepStage(
        ChunkReader(file, plan.staging, blocks_of(count)),
        byte_view(host),
        BlockPlaces(block_views(host, plan.staging, [PAGE] * count), device_blocks, plan.ring),
        ops,
        LONG_S,
    )
    stage.open()
    return stage, device_blocks


def run_pass(stage: WeightSupply, count: int, run: Any) -> None:
    stage.begin_pass()
    failed = True
    try:
        for step in range(count):
            stage.begin_step(step)
            run(step)
            stage.end_step(step)
        failed = False
    finally:
        stage.end_pass(failed)


@NUMBERS_OF_BLOCKS
def test_reading_copying_and_running_share_a_cycle(count: int) -> None:
    log, pause = Log(), random.Random(0)
    fences: list[LoggedFence] = []

    def copy_slowly(target: Tensor, source: Tensor) -> None:
        log.begin("copy")
        time.sleep(pause.uniform(0, 2e-3))
        copy(target, source)
        log.end("copy")

    def fence() -> Fence:
        if len(log.times.get("run", [])) == len(fences):  # the end of a pass runs nothing
            return Fence()
        fences.append(LoggedFence(log, pause))
        return fences[-1]

    file = LoggedFile(log)
    stage, device_blocks = open_lockstep(count, file, DeviceOps(copy_slowly, fence, mark=pytest.fail))

    def run(step: int) -> None:
        assert set(device_blocks[step].tolist()) == {step}
        log.begin("run")

    for _ in range(PASSES):
        run_pass(stage, count, run)
    stats = stage.stats()
    stage.close()
    log.check(["run", "copy", "read"], count)
    assert file.is_closed
    assert stats.bytes_copied >= PASSES * count * PAGE
    assert stats.bytes_read >= stats.bytes_copied


@NUMBERS_OF_BLOCKS
def test_reading_and_running_share_a_cycle_on_a_cpu(count: int) -> None:
    log, pause = Log(), random.Random(0)
    plan = plan_of(count, is_copied=False).ring
    ring = page_aligned(plan.capacity)
    places = block_views(ring, plan, [PAGE] * count)
    file: Any = LoggedFile(log)
    stream = WeightStream(WeightPrefetcher(byte_view(ring)), ChunkReader(file, plan, blocks_of(count)))

    def run(step: int) -> None:
        log.begin("run")
        assert set(places[step].tolist()) == {step}
        time.sleep(pause.uniform(0, 2e-3))
        log.end("run")

    stream.open()
    for _ in range(PASSES):
        run_pass(stream, count, run)
    stream.close()
    log.check(["run", "read"], count)


@pytest.mark.parametrize("failing_read", range(8))
def test_failed_read_costs_the_pass_that_needs_it(failing_read: int) -> None:
    """Blocks are read up to two ahead. A read that fails for the next pass does not end the current one."""
    count, reads = 3, iter(range(100))
    file = LoggedFile(Log())

    def read(offset: int, memory: memoryview, layer: str) -> None:
        if next(reads) == failing_read:
            raise StreamError(DropReason.WEIGHTS_UNREADABLE, "The disk is broken.")
        LoggedFile.read(file, offset, memory, layer)

    file.read = read  # type: ignore[method-assign]
    stage, device_blocks = open_lockstep(count, file, OPS)

    def run(step: int) -> None:
        assert set(device_blocks[step].tolist()) == {step}

    outcomes = []
    for _ in range(4):
        outcomes.append(False)
        with suppress(StreamError):
            run_pass(stage, count, run)
            outcomes[-1] = True
    stage.close()
    assert outcomes == [number != failing_read // count for number in range(4)]


def test_lost_device_fails_each_pass() -> None:
    class LostFence(Fence):
        def wait(self) -> None:
            raise RuntimeError("the device is lost")

    ops = DeviceOps(copy, LostFence, mark=pytest.fail)
    stage, _ = open_lockstep(2, LoggedFile(Log()), ops)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the device is lost"):
            run_pass(stage, 2, lambda step: torch.zeros(1))
    stage.close()


def test_closing_a_pipeline_without_passes_ends_its_threads() -> None:
    file = LoggedFile(Log())
    stage, _ = open_lockstep(3, file, OPS)
    stage.close()
    assert file.is_closed
    assert not [each for each in threading.enumerate() if each.name.startswith(("weight_copy", "weight_reader"))]
