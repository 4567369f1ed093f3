"""The two-stage pipeline of paper 002: the device reads weights directly from the ring into which the disk writes."""

from __future__ import annotations

import time
from collections import deque

from split_infer_ros.runtime.streams import Fence
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats, WeightStream


class MappedStage:
    """Supplies weights in a ring that the device sees. Frees a step's weights when the device has run the step.

    Args:
        weight_stream: reads weights into the ring.
        ops: the device's operations.
    """

    def __init__(self, weight_stream: WeightStream, ops: DeviceOps) -> None:
        self._stream = weight_stream
        self._ops = ops
        self._queued_steps: deque[tuple[int, Fence]] = deque()  # steps queued on the device, each with its fence

    def open(self) -> None:
        """Begins to read weights."""
        self._stream.open()

    def expect_next(self) -> None:
        """Tells the thread that reads ahead that this partition runs the next pass in the ring."""
        self._stream.expect_next()

    def begin_pass(self) -> None:
        """Waits until no other partition runs a pass in the ring, then begins a pass."""
        self._stream.begin_pass()

    def begin_step(self, step: int) -> float:
        """Waits until a step's weights were read. Meanwhile, it frees the weights of steps that the device has run.

        Returns:
            The seconds that it waited.

        Raises:
            StreamError: the weights cannot be read, or did not come in time.
        """
        start = time.perf_counter()
        while self._queued_steps and not self._stream.has_step(step):
            self._free_oldest()
        self._stream.begin_step(step)
        return time.perf_counter() - start

    def end_step(self, step: int) -> None:
        """Notes that a step was queued on the device."""
        self._queued_steps.append((step, self._ops.fence()))

    def end_pass(self, failed: bool) -> None:
        """Waits for the device, then ends the pass. The ring is free for the next pass even if the device failed."""
        try:
            while self._queued_steps:
                self._free_oldest()
        except Exception:
            failed = True
            raise
        finally:
            self._queued_steps.clear()
            self._stream.end_pass(failed)

    def stats(self) -> PrefetchStats:
        """Returns totals since the start."""
        return self._stream.stats()

    def close(self) -> None:
        """Ends reading, and closes the file."""
        self._stream.close()

    def _free_oldest(self) -> None:
        step, fence = self._queued_steps.popleft()
        fence.wait()
        self._stream.end_step(step)
