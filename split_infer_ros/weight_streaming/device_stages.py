"""Weights on their way to a device that works behind: what it was given is not yet done.

Two ways, as the paper has them. Either the device reads the ring that the file was read into (two-stage), or blocks are
copied from that ring to one of the device's own, by a thread that goes at its own pace (three-stage, asynchronous).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.prefetcher import STALL_S
from split_infer_ros.weight_streaming.ring import RingPlan
from split_infer_ros.weight_streaming.weight_stream import PrefetchStats, WeightStream


class DeviceFence(Protocol):
    """A point in what a device was given."""

    def wait(self) -> None:
        """Returns once the device has come to it."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What of a device is needed here.

    Attributes:
        copy: (to the device, from the host); returns once it is done, beside what the device computes.
        fence: makes a fence behind what it was given to compute up to now.
    """

    copy: Callable[[Tensor, Tensor], None]
    fence: Callable[[], DeviceFence]


class MappedStage:
    """The ring that is read into, seen by the device, whose steps give weights up when it is done with them."""

    def __init__(self, weight_stream: WeightStream, processor: Processor) -> None:
        self._stream = weight_stream
        self._processor = processor
        self._given: deque[tuple[int, DeviceFence]] = deque()  # steps that the device was given

    def expect(self) -> None:
        """The next pass in this ring will be this partition's."""
        self._stream.expect()

    def start(self) -> None:
        """A pass begins."""
        self._stream.start()

    def begin(self, step: int) -> float:
        """As the track's; what the device has done meanwhile is given up first."""
        start = time.perf_counter()
        while self._given and not self._stream.has(step):
            self._give_up()
        self._stream.begin(step)
        return time.perf_counter() - start

    def end(self, step: int) -> None:
        """The device was given a step."""
        self._given.append((step, self._processor.fence()))

    def finish(self, failed: bool) -> None:
        """The device was given all of a pass."""
        try:
            while self._given:
                self._give_up()
        except Exception:
            failed = True
            raise
        finally:  # whatever befell the device, the ring's next pass does not wait for this one
            self._given.clear()
            self._stream.finish(failed)

    def stats(self) -> PrefetchStats:
        """The track's."""
        return self._stream.stats()

    def close(self) -> None:
        """Read no more."""
        self._stream.close()

    def _give_up(self) -> None:
        step, fence = self._given.popleft()
        fence.wait()
        self._stream.end(step)


class CopyStage:
    """Copies blocks from the host's ring to the device's, as soon as they are read and their place is free.

    Args:
        track: whose steps are the blocks, one by one.
        host, device: where each block lies in either ring.
        plan: of the device's ring, whose portions are the blocks.
        processor: the device.
        stall_s: how long a step waits; longer than the reader, which knows better what did not come.
    """

    def __init__(
        self,
        weight_stream: WeightStream,
        host: Sequence[Tensor],
        device: Sequence[Tensor],
        plan: RingPlan,
        processor: Processor,
        stall_s: float = 2 * STALL_S,
    ) -> None:
        self._stream = weight_stream
        self._stall_s = stall_s
        self._host, self._device = host, device
        self._plan = plan
        self._processor = processor
        self._changed = threading.Condition()
        self._base = self._copied = self._released = 0
        self._freed: deque[tuple[int, DeviceFence]] = deque()  # so many blocks are free once the device is there
        self._failed: tuple[int, Exception] | None = None  # where the pass ends that it befell
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="weights_copy", daemon=True)
        self._thread.start()

    def expect(self) -> None:
        """The next pass will be this partition's, as always."""

    def start(self) -> None:
        """A pass begins; the copies are ahead of it."""

    def begin(self, step: int) -> float:
        """Waits until a step's weights are on the device; returns for how many seconds.

        Raises:
            StreamError: they cannot be read, or did not come in time.
            Exception: whatever the copy raised.
        """
        wanted = self._base + self._plan.needs[step]
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: self._copied >= wanted or self._failed is not None or self._closing, self._stall_s
            )
            if self._copied >= wanted:
                return time.perf_counter() - start
            if self._failed is not None:
                raise self._failed[1]
        if self._closing:
            raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"{self._stream.file.path} was closed.")
        raise StreamError(
            DropReason.WEIGHTS_STALLED, f"Step {step}'s weights did not come to the device within {self._stall_s:g} s."
        )

    def end(self, step: int) -> None:
        """The device was given a step."""
        self._free(self._base + self._plan.frees[step])

    def finish(self, failed: bool) -> None:
        """The device was given all of a pass, or all that it will be."""
        with self._changed:
            self._base += len(self._host)
            if self._failed is not None and self._failed[0] <= self._base:
                self._failed = None
        self._free(self._base)

    def stats(self) -> PrefetchStats:
        """The track's."""
        return self._stream.stats()

    def close(self) -> None:
        """End both threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._stream.close()
        self._thread.join()

    def _free(self, count: int) -> None:
        fence = self._processor.fence()
        with self._changed:
            self._freed.append((count, fence))
            self._changed.notify_all()

    def _loop(self) -> None:
        while not self._closing:
            self._stream.start()
            failure = self._copy_pass()
            self._stream.finish(failure is not None)
            with self._changed:
                if failure is not None:
                    end = (self._copied // len(self._host) + 1) * len(self._host)
                    self._failed = end, failure
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._base >= end or self._closing)  # noqa: B023
                    self._copied = end

    def _copy_pass(self) -> Exception | None:
        """One pass's blocks; what befell it, for ``begin`` to raise: nobody waits for a thread that has ended."""
        try:
            for block, window in enumerate(self._plan.window):
                self._stream.begin(block)
                if not self._wait_for(self._copied - window):
                    return None
                self._processor.copy(self._device[block], self._host[block])
                self._stream.end(block)
                with self._changed:
                    self._copied += 1
                    self._changed.notify_all()
        except Exception as error:
            return error
        return None

    def _wait_for(self, count: int) -> bool:
        """Wait until the device is done with so many blocks; False if it all ends."""
        while self._released < count:
            with self._changed:
                self._changed.wait_for(lambda: self._freed or self._closing)
                if self._closing:
                    return False
                released, fence = self._freed.popleft()
            fence.wait()
            self._released = released
        return True
