"""Streams as queues of work. The work is done late, in any order that its dependencies allow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import torch

from simulated_gpu.clocks import Actor

if TYPE_CHECKING:
    from simulated_gpu.captures import Capture

Choose = Callable[[int], int]  # given how many may advance, the number of the one that does


class Work:
    """A piece of work. Its stream does it after all earlier work, and after the work of other streams in ``needs``.

    Attributes:
        run: does the work; None for an event.
        queue: the stream.
        needs: the work of other streams that must be done before.
        done: whether it is done.
    """

    __slots__ = ("done", "needs", "queue", "run")

    def __init__(self, run: Callable[[], object] | None, queue: Queue, needs: list[Work]) -> None:
        self.run = run
        self.queue = queue
        self.needs = needs
        self.done = False


class Queue(Actor):
    """One CUDA stream.

    Attributes:
        handle: CUDA's number of the stream.
        capture: the recording in which the stream takes part; None if there is none.
        alive: False once the stream was destroyed.
        given: how many pieces of work it was given, without events.
        last: the work that was given last.
        needs: the work of other streams that must be done before the next work.
    """

    def __init__(self, name: str, handle: int) -> None:
        super().__init__(name)
        self.handle = handle
        self.capture: Capture | None = None
        self.alive = True
        self.given = 0
        self.last: Work | None = None
        self.needs: list[Work] = []  # of the work that comes next
        self._waiting: deque[Work] = deque()

    def append(self, run: Callable[[], object] | None) -> Work:
        """Adds work to the end of the queue, and returns it. ``run`` is None for an event."""
        self.last = Work(run, self, self.needs)
        self.needs = []
        self.given += run is not None
        self._waiting.append(self.last)
        return self.last

    @property
    def head(self) -> Work | None:
        """The next work of this stream; None if there is none."""
        return self._waiting[0] if self._waiting else None

    @property
    def is_idle(self) -> bool:
        """True if no work is left."""
        return not self._waiting

    def advance(self, idle: bool = False) -> None:
        """Does the next work. If ``idle``, only marks it as done."""
        work = self._waiting.popleft()
        work.done = True
        run, work.run, work.needs = work.run, None, []
        if run is not None and not idle:
            # Plain tensors may be of either kind; here both can be written.
            with torch._C._DisableTorchDispatch(), torch.inference_mode():
                run()


class Processor:
    """Does the work of all queues. No work is done before somebody waits for it.

    Args:
        choose: chooses which of several streams does its next work.
        fail: called with the error of a kernel that failed. It raises the error that CUDA then raises.

    Attributes:
        queues: all streams.
    """

    def __init__(self, choose: Choose, fail: Callable[[Exception], NoReturn]) -> None:
        self.queues: list[Queue] = []
        self._choose = choose
        self._fail = fail
        self._lost = False  # a kernel failed: whatever else is given is not done

    def finish(self, work: Work | None) -> None:
        """Does a piece of work, after all that it depends on. By chance, work of other streams is done in between."""
        stack = [work] if work is not None else []
        while stack:
            wanted = stack[-1]
            if wanted.done:
                stack.pop()
                continue
            head = wanted.queue.head
            assert head is not None
            missing = [need for need in head.needs if not need.done]
            if missing:
                stack.append(missing[self._choose(len(missing))])
                continue
            if not self._choose(3):
                self._stray(head.queue)
            if head.queue.head is head:
                self._advance(head.queue)

    def finish_all(self) -> None:
        """Does all work of all streams, in any order that the dependencies allow."""
        while busy := [queue for queue in self.queues if not queue.is_idle]:
            self.finish(busy[self._choose(len(busy))].last)

    def _stray(self, but: Queue) -> None:
        ready = [
            queue
            for queue in self.queues
            if queue is not but and queue.head is not None and all(need.done for need in queue.head.needs)
        ]
        if ready:
            self._advance(ready[self._choose(len(ready))])

    def _advance(self, queue: Queue) -> None:
        try:
            queue.advance(idle=self._lost)
        except Exception as error:
            self._lost = True
            self._fail(error)
