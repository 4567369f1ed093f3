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

from split_infer_ros.errors import StreamError
from split_infer_ros.layering.ring import RingPlan
from split_infer_ros.layering.track import ReaderStats, Track


class Mark(Protocol):
    """A point in what a device was given."""

    def wait(self) -> None:
        """Return once the device has come to it."""


@dataclass(frozen=True, slots=True)
class Processor:
    """What of a device is needed here.

    Attributes:
        copy: (to the device, from the host); returns once it is done, beside what the device computes.
        mark: of what it was given to compute up to now.
    """

    copy: Callable[[Tensor, Tensor], None]
    mark: Callable[[], Mark]


class MappedStage:
    """The ring that is read into, seen by the device, whose steps give weights up when it is done with them."""

    def __init__(self, track: Track, processor: Processor) -> None:
        self._track = track
        self._processor = processor
        self._given: deque[tuple[int, Mark]] = deque()  # steps that the device was given

    def expect(self) -> None:
        """The next pass in this ring will be this half's."""
        self._track.expect()

    def start(self) -> None:
        """A pass begins."""
        self._track.start()

    def begin(self, step: int) -> float:
        """As the track's; what the device has done meanwhile is given up first."""
        start = time.perf_counter()
        while self._given and not self._track.has(step):
            self._give_up()
        self._track.begin(step)
        return time.perf_counter() - start

    def end(self, step: int) -> None:
        """The device was given a step."""
        self._given.append((step, self._processor.mark()))

    def finish(self, failed: bool) -> None:
        """The device was given all of a pass."""
        while self._given:
            self._give_up()
        self._track.finish(failed)

    def stats(self) -> ReaderStats:
        """The track's."""
        return self._track.stats()

    def close(self) -> None:
        """Read no more."""
        self._track.close()

    def _give_up(self) -> None:
        step, mark = self._given.popleft()
        mark.wait()
        self._track.end(step)


class CopyStage:
    """Copies blocks from the host's ring to the device's, as soon as they are read and their place is free.

    Args:
        track: whose steps are the blocks, one by one.
        host, device: where each block lies in either ring.
        plan: of the device's ring, whose portions are the blocks.
        processor: the device.
    """

    def __init__(
        self, track: Track, host: Sequence[Tensor], device: Sequence[Tensor], plan: RingPlan, processor: Processor
    ) -> None:
        self._track = track
        self._host, self._device = host, device
        self._plan = plan
        self._processor = processor
        self._changed = threading.Condition()
        self._base = self._copied = self._released = 0
        self._freed: deque[tuple[int, Mark]] = deque()  # so many blocks are free once the device is there
        self._failed: tuple[int, StreamError] | None = None  # where the pass ends that it befell
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name="weights_copy", daemon=True)
        self._thread.start()

    def expect(self) -> None:
        """The next pass will be this half's, as always."""

    def start(self) -> None:
        """A pass begins; the copies are ahead of it."""

    def begin(self, step: int) -> float:
        """Wait until a step's weights are on the device; returns for how many seconds.

        Raises:
            StreamError: they cannot be read, or did not come in time.
        """
        wanted = self._base + self._plan.needs[step]
        start = time.perf_counter()
        with self._changed:
            # bounded, as the reader's wait is
            self._changed.wait_for(lambda: self._copied >= wanted or self._failed is not None)
            if self._copied < wanted and self._failed is not None:
                raise self._failed[1]
        return time.perf_counter() - start

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

    def stats(self) -> ReaderStats:
        """The track's."""
        return self._track.stats()

    def close(self) -> None:
        """End both threads."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._track.close()
        self._thread.join()

    def _free(self, count: int) -> None:
        mark = self._processor.mark()
        with self._changed:
            self._freed.append((count, mark))
            self._changed.notify_all()

    def _loop(self) -> None:
        while not self._closing:
            self._track.start()
            failure = self._copy_pass()
            self._track.finish(failure is not None)
            with self._changed:
                if failure is not None:
                    end = (self._copied // len(self._host) + 1) * len(self._host)
                    self._failed = end, failure
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._base >= end or self._closing)  # noqa: B023
                    self._copied = end

    def _copy_pass(self) -> StreamError | None:
        for block, window in enumerate(self._plan.window):
            try:
                self._track.begin(block)
            except StreamError as error:
                return error
            if not self._wait_for(self._copied - window):
                return None
            self._processor.copy(self._device[block], self._host[block])
            self._track.end(block)
            with self._changed:
                self._copied += 1
                self._changed.notify_all()
        return None

    def _wait_for(self, count: int) -> bool:
        """Wait until the device is done with so many blocks; False if it all ends."""
        while self._released < count:
            with self._changed:
                self._changed.wait_for(lambda: self._freed or self._closing)
                if self._closing:
                    return False
                released, mark = self._freed.popleft()
            mark.wait()
            self._released = released
        return True
