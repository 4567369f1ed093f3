"""Simulates ``torch.cuda.Stream`` and ``torch.cuda.Event``."""

from __future__ import annotations

import time

from simulated_gpu.captures import Capture
from simulated_gpu.clocks import Clock
from simulated_gpu.gpu import Gpu
from simulated_gpu.queues import Queue, Work


class Stream:
    """Stands in for torch's stream. Without ``queue``, it is the next of torch's 32 streams."""

    gpu: Gpu  # of the subclass that ``torch_api`` makes

    def __init__(self, device: object = None, priority: int = 0, queue: Queue | None = None) -> None:
        self.queue = queue or self.gpu.deal()
        self.device = self.gpu.device

    @property
    def cuda_stream(self) -> int:
        return self.queue.handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.queue is self.queue

    def __hash__(self) -> int:
        return hash(self.queue.handle)

    def __repr__(self) -> str:
        return f"<{self.queue.name}>"

    def synchronize(self) -> None:
        self.gpu.wait_for(self.queue)

    def query(self) -> bool:
        self.gpu.forbid("a stream was queried")
        if not self.queue.is_idle and not self.gpu.choose(2):
            self.gpu.processor.finish(self.queue.last)
        return self.queue.is_idle

    def wait_event(self, event: Event) -> None:
        event.wait(self)

    def wait_stream(self, stream: Stream) -> None:
        self.wait_event(stream.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or self.gpu.api.Event()  # type: ignore[attr-defined]
        event.record(self)
        return event


class Event:
    """Stands in for torch's event: a point in the work of a stream or of a recording."""

    gpu: Gpu

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._clock: Clock = {}
        self._work: Work | None = None
        self._captured: tuple[Capture, list[int]] | None = None
        self._at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        queue = self._queue(stream)
        with self.gpu.lock:
            self.gpu.check()
            if queue.capture is not None:
                self._captured = queue.capture, list(queue.capture.tails[queue])
                return
            queue.follow(self.gpu.host())
            self._captured, self._clock, self._at = None, dict(queue.clock), time.perf_counter()
            self._work = queue.append(None)
            queue.step()
            self.gpu.host().step()

    def wait(self, stream: Stream | None = None) -> None:
        queue = self._queue(stream)
        with self.gpu.lock:
            self.gpu.check()
            if self._captured is not None:
                capture, needs = self._captured
                if capture not in self.gpu.captures or queue.capture not in (None, capture):
                    self.gpu.fault("An event of one recording was waited for outside of it.")
                capture.join(queue, needs)
            elif queue.capture is not None and self._work is not None:
                self.gpu.invalidate(queue.capture, "work outside of the recording was waited for")
            elif self._work is not None:
                queue.learn(self._clock)
                queue.needs.append(self._work)

    def synchronize(self) -> None:
        if self._captured is not None:
            self.gpu.invalidate(self._captured[0], "an event of the recording was synchronised")
        self.gpu.forbid("an event was synchronised")
        self.gpu.wait(self._work, self._clock)

    def query(self) -> bool:
        if self._captured is not None:
            self.gpu.invalidate(self._captured[0], "an event of the recording was queried")
        self.gpu.forbid("an event was queried")
        with self.gpu.lock:
            if self._work is not None and not self._work.done and self.gpu.choose(2):
                return False
            self.gpu.wait(self._work, self._clock)
            return True

    def elapsed_time(self, end: Event) -> float:
        return max(1e-3, 1e3 * (end._at - self._at))

    def _queue(self, stream: Stream | None) -> Queue:
        return self.gpu.current if stream is None else stream.queue
