"""How the thread that copies blocks to a device and the thread that runs layers there work together.

A block is ready once it was copied. It is free once the device has run the last step that reads it.
"""

from __future__ import annotations

import abc
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.runtime.streams import Fence
from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.ring_plan import RingPlan
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class BlockPlaces:
    """Where blocks lie on the host, and where they are copied to on a device.

    Attributes:
        on_host: place of each block in the host's buffers.
        on_device: place of each block in the device's buffers.
        plan: the plan of the device's buffers. Its chunks are the blocks.
    """

    on_host: Sequence[Tensor]
    on_device: Sequence[Tensor]
    plan: RingPlan


class DeviceSupply(abc.ABC):
    """Supplies weights in buffers on a device. A thread copies blocks there. A subclass says in which order.

    Blocks are counted over all passes. ``_blocks_ready`` counts the blocks that layers may use. ``_blocks_freed``
    counts the blocks that the device no longer needs. ``_pass_start`` is the first block of the current pass.

    Args:
        reader: reads the weights.
        places: the places of the blocks.
        ops: the device's operations.
        timeout_s: the longest wait of a step.
    """

    def __init__(self, reader: ChunkReader, places: BlockPlaces, ops: DeviceOps, timeout_s: float) -> None:
        self._reader = reader
        self._host_blocks, self._device_blocks, self._plan = places.on_host, places.on_device, places.plan
        self._ops = ops
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._pass_start = self._blocks_ready = self._blocks_freed = 0
        self._frees: deque[tuple[int, Fence]] = deque()  # (count, fence): behind the fence, count blocks are free
        self._failure: tuple[int, Exception] | None = None  # (end of the failed pass, error)
        self._is_closing = False
        self._bytes_copied, self._copying_s, self._stalled_s = 0, 0.0, 0.0
        self._thread = threading.Thread(target=self._copy_passes, name="weight_copy", daemon=True)

    def open(self) -> None:
        """Begins to read and copy weights."""
        self._thread.start()

    def expect_next(self) -> None:  # noqa: B027  # the same in all pipelines
        """Does nothing: only this partition uses the buffers."""

    def begin_pass(self) -> None:  # noqa: B027
        """Does nothing: copying does not wait for a pass to begin."""

    def begin_step(self, step: int) -> float:
        """Waits until a step's weights are ready on the device. Returns the seconds that it waited.

        Raises:
            StreamError: the weights cannot be read, or did not come in time.
            Exception: the copy failed.
        """
        needed = self._pass_start + self._plan.chunks_needed[step]
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: self._blocks_ready >= needed or self._failure is not None or self._is_closing, self._timeout_s
            )
            waited = time.perf_counter() - start
            self._stalled_s += waited
            if self._blocks_ready >= needed:
                return waited
            if self._failure is not None:
                raise self._failure[1]
        if self._is_closing:
            raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"{self._reader.file.path} was closed.")
        raise StreamError(
            DropReason.WEIGHTS_STALLED, f"Step {step}'s weights did not reach the device within {self._timeout_s:g} s."
        )

    def end_step(self, step: int) -> None:
        """Notes that a step was queued on the device."""
        self._free(self._pass_start + self._plan.chunks_freed[step])

    def end_pass(self, failed: bool) -> None:
        """Ends a pass. Nothing more of it will be queued on the device."""
        with self._changed:
            self._pass_start += len(self._plan.chunks)
            if self._failure is not None and self._failure[0] <= self._pass_start:
                self._failure = None
        self._free(self._pass_start)

    def stats(self) -> PrefetchStats:
        """Returns totals since the start."""
        totals = PrefetchStats.of(self._reader, self._stalled_s)
        return replace(totals, bytes_copied=self._bytes_copied, copying_s=self._copying_s)

    @abc.abstractmethod
    def close(self) -> None:
        """Ends reading and copying, and closes the file."""

    @abc.abstractmethod
    def _copy_passes(self) -> None:
        """Copies blocks, pass after pass, until the supply closes."""

    def _copy(self, block: int) -> None:
        """Copies a block to its place on the device."""
        start = time.perf_counter()
        self._ops.copy(self._device_blocks[block], self._host_blocks[block])
        self._copying_s += time.perf_counter() - start
        self._bytes_copied += self._host_blocks[block].nbytes

    def _begin_close(self) -> None:
        """Ends all waits of the other threads."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _make_ready(self, count: int) -> None:
        """Lets layers use the first ``count`` blocks."""
        with self._changed:
            self._blocks_ready = count
            self._changed.notify_all()

    def _fail_pass(self, pass_end: int, failure: Exception) -> None:
        """Fails the pass that ends with block ``pass_end``, and waits until the layers have ended it."""
        with self._changed:
            self._failure = pass_end, failure
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._pass_start >= pass_end or self._is_closing)
            self._blocks_ready = pass_end

    def _wait_until_free(self, count: int) -> bool:
        """Waits until the device no longer needs the first ``count`` blocks. Returns False if the supply closes."""
        while self._blocks_freed < count:
            with self._changed:
                self._changed.wait_for(lambda: self._frees or self._is_closing)
                if self._is_closing:
                    return False
                blocks_freed, fence = self._frees.popleft()
            fence.wait()
            self._blocks_freed = blocks_freed
        return True

    def _free(self, count: int) -> None:
        fence = self._ops.fence()
        with self._changed:
            self._frees.append((count, fence))
            self._changed.notify_all()
