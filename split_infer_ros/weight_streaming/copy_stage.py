"""The asynchronous pipeline of paper 002: a thread copies blocks from a ring on the host to a ring on the device."""

from __future__ import annotations

from split_infer_ros.weight_streaming.device_ops import DeviceOps
from split_infer_ros.weight_streaming.device_supply import BlockPlaces, DeviceSupply
from split_infer_ros.weight_streaming.prefetcher import TIMEOUT_S
from split_infer_ros.weight_streaming.weight_stream import WeightStream


class CopyStage(DeviceSupply):
    """Supplies weights in a ring on the device. A thread copies each block once it was read and the ring has room.

    Args:
        weight_stream: fills the ring on the host. Each of its steps is one block.
        places: the places of the blocks in the rings of host and device.
        ops: the device's operations.
        timeout_s: the longest wait of a step. It exceeds the weight stream's timeout, which gives the more exact error.
    """

    def __init__(
        self, weight_stream: WeightStream, places: BlockPlaces, ops: DeviceOps, timeout_s: float = 2 * TIMEOUT_S
    ) -> None:
        super().__init__(weight_stream.reader, places, ops, timeout_s)
        self._stream = weight_stream

    def open(self) -> None:
        """Begins to read and copy weights."""
        self._stream.open()
        super().open()

    def close(self) -> None:
        """Ends both threads, and closes the file."""
        self._begin_close()
        self._stream.close()
        self._thread.join()

    def _copy_passes(self) -> None:
        while not self._is_closing:
            self._stream.begin_pass()
            failure = self._copy_pass()
            self._stream.end_pass(failure is not None)
            if failure is not None:
                blocks = len(self._host_blocks)
                self._fail_pass((self._blocks_ready // blocks + 1) * blocks, failure)

    def _copy_pass(self) -> Exception | None:
        """Copies one pass's blocks. Returns the error, if any: ``begin_step`` raises it in the thread that waits."""
        try:
            for block, window in enumerate(self._plan.window):
                self._stream.begin_step(block)
                if not self._wait_until_free(self._blocks_ready - window):
                    return None
                self._copy(block)
                self._stream.end_step(block)
                self._make_ready(self._blocks_ready + 1)
        except Exception as error:
            return error
        return None
