"""The thread that reads weights into the ring, portion by portion, as the layers before give their place up.

One read is in flight at a time: as measured, several read no more in a second. Partitions may share a ring and its
reader; then one pass runs at a time, and the first layers of the one that is expected next are read while it does.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.ring import window_after

if TYPE_CHECKING:
    from split_infer_ros.weight_streaming.weight_stream import WeightStream

STALL_S = 10.0  # a pass waits no longer for a portion


class WeightPrefetcher:
    """Keeps a ring filled, pass after pass, for as long as there are tracks.

    Portions are counted from the current pass on into the one that follows: so many were ``read``, in order, and of the
    current pass's so many are ``released``.

    Args:
        memory: of the ring, page-aligned.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._turn = threading.Lock()  # of the track whose pass runs
        self._changed = threading.Condition()
        self._streams: list[WeightStream] = []
        self._current: WeightStream | None = None
        self._following: WeightStream | None = None
        self._ahead: tuple[int, ...] = ()  # the following one's window
        self._read = self._released = 0
        self._discarded = 0  # how often reads that may be under way were given up
        self._failed: StreamError | None = None  # why the next portion could not be read
        self._reading: WeightStream | None = None
        self._thread: threading.Thread | None = None

    def add(self, weight_stream: WeightStream) -> None:
        """A track comes; the only one is read at once, unless one that went is still in a pass."""
        with self._changed:
            self._streams.append(weight_stream)
            if len(self._streams) == 1 and not self._turn.locked():
                self._discard()
                self._set(weight_stream, weight_stream)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="weights", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drop(self, weight_stream: WeightStream, within_s: float) -> None:
        """A track goes, with its file; one that the disk holds is left to the thread."""
        with self._changed:
            if weight_stream not in self._streams:
                return
            self._streams.remove(weight_stream)
            if self._current is weight_stream:
                self._discard()
                self._set(None, None)
            elif self._following is weight_stream:
                self._expect(None)
            if self._reading is not weight_stream:
                weight_stream.file.close()
            thread = None if self._streams else self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(within_s)

    def expect(self, weight_stream: WeightStream) -> None:
        """Its pass comes after the current one."""
        with self._changed:
            self._expect(weight_stream)
            self._changed.notify_all()

    def start(self, weight_stream: WeightStream) -> None:
        """A pass begins, once no other is under way; what was read for another one is read anew."""
        self._turn.acquire()
        with self._changed:
            if self._current is not weight_stream:
                self._discard()
                self._set(weight_stream, self._following)
                self._changed.notify_all()

    def has(self, count: int) -> bool:
        """True if so many of the current pass's portions are there."""
        return self._read >= count

    def wait(self, weight_stream: WeightStream, count: int, stall_s: float) -> float:
        """Wait until so many of the current pass's portions are there; returns for how many seconds.

        Raises:
            StreamError: they cannot be read, or did not come in time.
        """
        if self._read >= count:
            return 0.0
        start = time.perf_counter()
        with self._changed:
            self._changed.wait_for(
                lambda: self._read >= count or self._failed is not None or weight_stream not in self._streams, stall_s
            )
            waited = time.perf_counter() - start
            weight_stream.stalled_s += waited
            if self._read >= count:
                return waited
            if weight_stream not in self._streams:
                raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"{weight_stream.file.path} was closed.")
            if self._failed is not None:
                raise self._failed
            layer = weight_stream.layer(self._read)
        raise StreamError(
            DropReason.WEIGHTS_STALLED,
            f"The disk of {weight_stream.file.path} did not give layer '{layer}' within {stall_s:g} s.",
        )

    def release(self, count: int) -> None:
        """So many of the current pass's portions are done with."""
        if count > self._released:
            with self._changed:
                self._released = count
                self._changed.notify_all()

    def finish(self, weight_stream: WeightStream, failed: bool) -> None:
        """The current pass is over; after one that failed all is read anew."""
        with self._changed:
            if failed or self._current is not weight_stream:
                self._discard()
            else:
                self._read -= len(weight_stream.plan.portions)
                self._released = 0
            only = self._streams[0] if len(self._streams) == 1 else None
            self._set(self._following or only, only)
            self._changed.notify_all()
        self._turn.release()

    def _set(self, current: WeightStream | None, following: WeightStream | None) -> None:
        self._current, self._following = current, following
        self._ahead = ()
        if current is not None and following is not None:
            self._ahead = window_after(current.plan, following.plan)

    def _expect(self, weight_stream: WeightStream | None) -> None:
        if weight_stream is not self._following:
            if self._current is not None:
                self._discard(len(self._current.plan.portions))
            self._set(self._current, weight_stream)

    def _discard(self, kept: int = 0) -> None:
        """What was or is being read beyond so many portions is read anew."""
        if self._read >= kept:
            self._read = kept
            self._failed = None
            self._discarded += 1
        if not kept:
            self._released = 0

    def _next(self) -> tuple[WeightStream, int] | None:
        """The portion that may be read now: its track, and its number there."""
        if self._current is None or self._failed is not None:
            return None
        weight_stream, plan, index = self._current, self._current.plan, self._read
        window: tuple[int, ...] = plan.window
        if index >= len(plan.portions):
            if self._following is None:
                return None
            weight_stream, index, window = self._following, index - len(plan.portions), self._ahead
        return (weight_stream, index) if index < len(window) and self._read - window[index] <= self._released else None

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() is not None or not self._streams)
                found = self._next()
                if found is None or not self._streams:
                    self._thread = None
                    return
                weight_stream, index = found
                self._reading, before = weight_stream, self._discarded
            failure: StreamError | None = None
            try:
                weight_stream.fetch(index, self._memory)
            except StreamError as error:
                failure = error
            except Exception as error:  # whatever it is, nobody waits in vain
                failure = StreamError(
                    DropReason.WEIGHTS_UNREADABLE, f"{weight_stream.file.path} cannot be read ({error})."
                )
            with self._changed:
                self._reading = None
                if weight_stream not in self._streams:
                    weight_stream.file.close()
                if self._discarded == before:
                    self._failed = failure
                    self._read += failure is None
                self._changed.notify_all()
