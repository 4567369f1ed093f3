"""The three-stage pipeline of the paper: blocks are copied from the ring on the host to one on the device."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from torch import Tensor

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.runtime.streams import Fence
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.prefetcher import TIMEOUT_S
from split_infer_ros.weight_streaming.ring_plan import RingPlan
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats, WeightStream


class CopyStage:
    """Supplies weights in a ring on the device. A thread copies blocks there as soon as they are read and fit.

    Blocks are counted over all passes. ``_blocks_copied`` counts those on the device. ``_blocks_freed`` counts those
    that the device no longer needs. ``_pass_start`` is the first block of the current pass.

    Args:
        weight_stream: whose steps are the blocks, one by one.
        host_blocks: place of each block in the host's ring.
        device_blocks: place of each block in the device's ring.
        plan: of the device's ring. Its chunks are the blocks.
        ops: of the device.
        timeout_s: how long a step waits. It is longer than the weight stream's, whose error is more exact.
    """

    def __init__(
        self,
        weight_stream: WeightStream,
        *,
        host_blocks: Sequence[Tensor],
        device_blocks: Sequence[Tensor],
        plan: RingPlan,
        ops: DeviceOps,
        timeout_s: float = 2 * TIMEOUT_S,
    ) -> None:
        self._stream = weight_stream
        self._host_blocks = host_blocks
        self._device_blocks = device_blocks
        self._plan = plan
        self._ops = ops
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._pass_start = self._blocks_copied = self._blocks_freed = 0
        self._frees: deque[tuple[int, Fence]] = deque()  # so many blocks are free once the device has passed the fence
        self._failure: tuple[int, Exception] | None = None  # with the end of the pass that it concerns
        self._is_closing = False
        self._thread = threading.Thread(target=self._loop, name="weight_copy", daemon=True)

    def open(self) -> None:
        """Begins to read and copy weights."""
        self._stream.open()
        self._thread.start()

    def expect_next(self) -> None:
        """Does nothing: the ring has this partition's passes only."""

    def begin_pass(self) -> None:
        """Does nothing: copies run ahead of the pass."""

    def begin_step(self, step: int) -> float:
        """Waits until a step's weights are on the device. Returns the seconds of waiting.

        Raises:
            StreamError: the weights cannot be read, or did not come in time.
            Exception: the copy failed.
        """
        needed = self._pass_start + self._plan.chunks_needed[step]
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: self._blocks_copied >= needed or self._failure is not None or self._is_closing, self._timeout_s
            )
            if self._blocks_copied >= needed:
                return time.perf_counter() - start
            if self._failure is not None:
                raise self._failure[1]
        if self._is_closing:
            raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"{self._stream.reader.file.path} was closed.")
        raise StreamError(
            DropReason.WEIGHTS_STALLED,
            f"Step {step}'s weights did not reach the device within {self._timeout_s:g} s.",
        )

    def end_step(self, step: int) -> None:
        """Notes that the device was given a step."""
        self._free(self._pass_start + self._plan.chunks_freed[step])

    def end_pass(self, failed: bool) -> None:
        """Ends a pass of which the device was given all that it will be given."""
        with self._changed:
            self._pass_start += len(self._host_blocks)
            if self._failure is not None and self._failure[0] <= self._pass_start:
                self._failure = None
        self._free(self._pass_start)

    def stats(self) -> PrefetchStats:
        """Returns totals since the start."""
        return self._stream.stats()

    def close(self) -> None:
        """Ends both threads, and closes the file."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._stream.close()
        self._thread.join()

    def _free(self, count: int) -> None:
        fence = self._ops.fence()
        with self._changed:
            self._frees.append((count, fence))
            self._changed.notify_all()

    def _loop(self) -> None:
        while not self._is_closing:
            self._stream.begin_pass()
            failure = self._copy_pass()
            self._stream.end_pass(failure is not None)
            if failure is not None:
                self._skip_pass(failure)

    def _copy_pass(self) -> Exception | None:
        """Copies one pass's blocks. Returns what failed, for ``begin_step`` to raise in the thread that waits."""
        try:
            for block, window in enumerate(self._plan.window):
                self._stream.begin_step(block)
                if not self._wait_until_free(self._blocks_copied - window):
                    return None
                self._ops.copy(self._device_blocks[block], self._host_blocks[block])
                self._stream.end_step(block)
                with self._changed:
                    self._blocks_copied += 1
                    self._changed.notify_all()
        except Exception as error:
            return error
        return None

    def _skip_pass(self, failure: Exception) -> None:
        """Fails the pass in progress, and waits until the layers have ended it."""
        with self._changed:
            blocks = len(self._host_blocks)
            pass_end = (self._blocks_copied // blocks + 1) * blocks
            self._failure = pass_end, failure
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._pass_start >= pass_end or self._is_closing)
            self._blocks_copied = pass_end

    def _wait_until_free(self, count: int) -> bool:
        """Waits until the device no longer needs the first ``count`` blocks. Returns False if the stage closes."""
        while self._blocks_freed < count:
            with self._changed:
                self._changed.wait_for(lambda: self._frees or self._is_closing)
                if self._is_closing:
                    return False
                blocks_freed, fence = self._frees.popleft()
            fence.wait()
            self._blocks_freed = blocks_freed
        return True
