"""The thread that reads weights before layers need them, into the places that earlier layers free.

One read is in flight at a time: measurements show that several reads transfer no more bytes a second. Several
partitions may share a ring and its prefetcher. Then one pass runs at a time, and meanwhile the thread reads the first
layers of the partition that runs next.
"""

from __future__ import annotations

import threading

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import StreamError
from split_infer_ros.weight_streaming.chunk_reader import ChunkReader
from split_infer_ros.weight_streaming.ring_plan import window_after

TIMEOUT_S = 10.0  # the longest wait of a pass for a chunk


class WeightPrefetcher:
    """Keeps a ring buffer filled, pass after pass, while it has readers.

    Chunks are counted from the start of the current pass into the following one. ``_chunks_read`` counts the chunks
    that were read, in order. ``_chunks_freed`` counts the chunks of the current pass that layers no longer need.

    Args:
        memory: the ring's memory, page-aligned.
    """

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._pass_lock = threading.Lock()  # held during a pass
        self._changed = threading.Condition()
        self._readers: list[ChunkReader] = []
        self._current: ChunkReader | None = None
        self._following: ChunkReader | None = None
        self._following_window: tuple[int, ...] = ()
        self._chunks_read = self._chunks_freed = 0
        self._discards = 0  # how often the result of a read in flight became useless
        self._failure: StreamError | None = None  # why the next chunk could not be read
        self._active_reader: ChunkReader | None = None  # the reader that is reading a chunk now
        self._thread: threading.Thread | None = None

    def add(self, reader: ChunkReader) -> None:
        """Adds a reader, and starts the thread if it does not run.

        If the reader is the only one, the thread reads its chunks at once. If a removed reader's pass still runs, the
        thread waits for the end of that pass.
        """
        with self._changed:
            self._readers.append(reader)
            if len(self._readers) == 1 and not self._pass_lock.locked():
                self._discard()
                self._set_passes(reader, reader)
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="weight_prefetcher", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, reader: ChunkReader, timeout_s: float) -> None:
        """Removes a reader and closes it. If the reader is reading a chunk, the thread closes it afterwards."""
        with self._changed:
            if reader not in self._readers:
                return
            self._readers.remove(reader)
            if self._current is reader:
                self._discard()
                self._set_passes(None, None)
            elif self._following is reader:
                self._set_following(None)
            if self._active_reader is not reader:
                reader.close()
            thread = None if self._readers else self._thread
            self._changed.notify_all()
        if thread is not None:
            thread.join(timeout_s)

    def expect_next(self, reader: ChunkReader) -> None:
        """Announces that the pass after the current one is this reader's."""
        with self._changed:
            self._set_following(reader)
            self._changed.notify_all()

    def begin_pass(self, reader: ChunkReader) -> None:
        """Waits until no pass runs, then begins one. Discards chunks that were read for another reader."""
        self._pass_lock.acquire()
        with self._changed:
            if self._current is not reader:
                self._discard()
                self._set_passes(reader, self._following)
                self._changed.notify_all()

    @property
    def can_read(self) -> bool:
        """Whether a chunk may be read now: a pass needs it, and its place in the ring is free."""
        with self._changed:
            return self._next_chunk() is not None

    def has_read(self, count: int) -> bool:
        """True if the first ``count`` chunks of the current pass were read."""
        return self._chunks_read >= count

    def wait_for(self, reader: ChunkReader, count: int, timeout_s: float) -> None:
        """Waits until the first ``count`` chunks of the current pass were read.

        Raises:
            StreamError: they cannot be read, or did not come in time.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._chunks_read >= count or self._failure is not None or reader not in self._readers,
                timeout_s,
            )
            if self._chunks_read >= count:
                return
            if reader not in self._readers:
                raise StreamError(DropReason.WEIGHTS_UNREADABLE, f"{reader.file.path} was closed.")
            if self._failure is not None:
                raise self._failure
            layer = reader.layer(self._chunks_read)
        raise StreamError(
            DropReason.WEIGHTS_STALLED,
            f"The disk of {reader.file.path} did not deliver layer '{layer}' within {timeout_s:g} s.",
        )

    def free(self, count: int) -> None:
        """Notes that layers no longer need the first ``count`` chunks of the current pass."""
        if count > self._chunks_freed:
            with self._changed:
                self._chunks_freed = count
                self._changed.notify_all()

    def end_pass(self, reader: ChunkReader, failed: bool) -> None:
        """Ends the current pass. After a failure, all chunks are read again."""
        with self._changed:
            if failed or self._current is not reader:
                self._discard()
            else:
                self._chunks_read -= len(reader.plan.chunks)
                self._chunks_freed = 0
            only = self._readers[0] if len(self._readers) == 1 else None
            self._set_passes(self._following or only, only)
            self._changed.notify_all()
        self._pass_lock.release()

    def _set_passes(self, current: ChunkReader | None, following: ChunkReader | None) -> None:
        self._current, self._following = current, following
        self._following_window = ()
        if current is not None and following is not None:
            self._following_window = window_after(current.plan, following.plan)

    def _set_following(self, reader: ChunkReader | None) -> None:
        if reader is not self._following:
            if self._current is not None:
                self._discard(len(self._current.plan.chunks))
            self._set_passes(self._current, reader)

    def _discard(self, kept: int = 0) -> None:
        """Discards all chunks but the first ``kept``, and the read in flight. The thread reads them again."""
        if self._chunks_read >= kept:
            self._chunks_read = kept
            self._failure = None
            self._discards += 1
        if not kept:
            self._chunks_freed = 0

    def _next_chunk(self) -> tuple[ChunkReader, int] | None:
        """Returns the reader and index of the chunk that may be read now, or None if reading has to wait."""
        if self._current is None or self._failure is not None:
            return None
        reader, index, window = self._current, self._chunks_read, self._current.plan.window
        if index >= len(reader.plan.chunks):
            if self._following is None:
                return None
            index -= len(reader.plan.chunks)
            reader, window = self._following, self._following_window
        if index >= len(window) or self._chunks_read - window[index] > self._chunks_freed:
            return None
        return reader, index

    def _loop(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.can_read or not self._readers)
                chunk = self._next_chunk()
                if chunk is None or not self._readers:
                    self._thread = None
                    return
                reader, index = chunk
                self._active_reader, discards = reader, self._discards
            failure: StreamError | None = None
            try:
                reader.fetch(index, self._memory)
            except StreamError as error:
                failure = error
            except Exception as error:  # any error: if it ended the thread, passes would wait in vain
                failure = StreamError(DropReason.WEIGHTS_UNREADABLE, f"{reader.file.path} cannot be read ({error}).")
            with self._changed:
                self._active_reader = None
                if reader not in self._readers:
                    reader.close()
                if self._discards == discards:
                    self._failure = failure
                    self._chunks_read += failure is None
                self._changed.notify_all()
