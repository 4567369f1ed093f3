"""The two-stage pipeline of paper 002: the device reads weights directly from the ring into which the disk writes."""

from __future__ import annotations

import time
from collections import deque

from split_infer_ros.runtime.streams import Fence
from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.prefetcher import TIMEOUT_S, WeightPrefetcher
from split_infer_ros.weight_streaming.weight_stream import WeightStream


class MappedStage(WeightStream):
    """Supplies weights in a ring that the device sees. Frees a step's weights when the device has run the step.

    Args:
        prefetcher, reader, timeout_s: as for ``WeightStream``.
        ops: the device's operations.
    """

    def __init__(
        self, prefetcher: WeightPrefetcher, reader: ChunkReader, ops: DeviceOps, timeout_s: float = TIMEOUT_S
    ) -> None:
        super().__init__(prefetcher, reader, timeout_s)
        self._ops = ops
        self._queued_steps: deque[tuple[int, Fence]] = deque()  # steps queued on the device, each with its fence

    def begin_step(self, step: int) -> float:
        """Waits until a step's weights were read. Meanwhile, it frees the weights of steps that the device has run.

        Returns:
            The seconds that it waited.

        Raises:
            StreamError: the weights cannot be read, or did not come in time.
        """
        start = time.perf_counter()
        while self._queued_steps and not self.has_step(step):
            self._free_oldest()
        super().begin_step(step)
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
            super().end_pass(failed)

    def _free_oldest(self) -> None:
        step, fence = self._queued_steps.popleft()
        fence.wait()
        super().end_step(step)
