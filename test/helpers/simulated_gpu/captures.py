"""Simulates the recording (capture) of graphs. Work is recorded with its addresses, and each replay does it again."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simulated_gpu.clocks import Actor, Clock
from simulated_gpu.memory_map import Region
from simulated_gpu.queues import Queue, Work

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu

PoolId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Baked:
    """The bytes that a recorded piece of work touches.

    Attributes:
        region: the allocation with the bytes.
        start, end: offsets of the first byte and of the byte after the last, in the region.
        writes: whether the work writes them.
        use: ``Region.use`` when the work was recorded.
        private: whether the region belongs to graphs.
    """

    region: Region
    start: int
    end: int
    writes: bool
    use: int
    private: bool


@dataclass(slots=True, eq=False)
class Step:
    """One recorded piece of work.

    Attributes:
        run: does the work.
        queue: the stream in which it was recorded.
        needs: the indices of the steps that must be done before it.
        touches: the bytes that it touches.
        place: where in the program it was recorded.
    """

    run: Callable[[], object]
    queue: Queue
    needs: list[int]
    touches: list[Baked]
    place: str


@dataclass(slots=True, eq=False)
class Capture:
    """A recording that is under way.

    Attributes:
        origin: the stream in which the recording was begun.
        pool: the pool from which the recorded work gets memory.
        mode: torch's ``capture_error_mode``, which says for which threads other calls are forbidden meanwhile.
        thread: the thread that began the recording.
        steps: the recorded steps.
        tails: for each stream that takes part, the steps that its next step must come after.
        failure: why the recording cannot succeed; empty if it can.
    """

    origin: Queue
    pool: PoolId
    mode: str
    thread: int = field(default_factory=threading.get_ident)
    steps: list[Step] = field(default_factory=list)
    tails: dict[Queue, list[int]] = field(default_factory=dict)
    failure: str = ""

    def __post_init__(self) -> None:
        self.join(self.origin, [])

    def join(self, queue: Queue, needs: list[int]) -> None:
        """Makes a stream part of the recording from now on. Its next step comes after the steps ``needs``."""
        self.tails[queue] = [*self.tails.get(queue, []), *needs]
        queue.capture = self

    def add(self, gpu: Gpu, queue: Queue, run: Callable[[], object], touches: list[Baked], place: str) -> None:
        """Records a piece of work of a stream."""
        if len(self.steps) == 1 and gc.isenabled():
            gc.collect()  # it may come at any time, and so it comes now
        self.steps.append(Step(run, queue, self.tails[queue], touches, place))
        self.tails[queue] = [len(self.steps) - 1]

    def unjoined(self) -> bool:
        """Returns whether a stream was forked from the origin and not joined to it again."""
        seen: set[int] = set()
        todo = list(self.tails[self.origin])
        while todo:
            if (index := todo.pop()) not in seen:
                seen.add(index)
                todo += self.steps[index].needs
        return any(not set(tail) <= seen for tail in self.tails.values())


class Graph:
    """A recorded graph, ready to be replayed."""

    def __init__(self, gpu: Gpu, capture: Capture) -> None:
        self._gpu = gpu
        self._steps = capture.steps
        self._end = capture.tails[capture.origin]
        across = {need for step in self._steps for need in step.needs if self._steps[need].queue is not step.queue}
        self._handed_on = across.union(self._end)  # the steps after which another branch, or the launching queue, comes
        self._branches = {queue: Actor(f"a graph's branch of {queue.name}") for queue in capture.tails}
        self._last: Work | None = None
        self._clock: Clock = {}

    def replay(self, queue: Queue, place: str) -> None:
        """Launches the graph in a stream, after the graph's last launch. ``place`` is the calling line, for reports."""
        gpu = self._gpu
        if queue.capture is not None:
            gpu.invalidate(queue.capture, "a graph was replayed in a stream that records another")
        for step in self._steps:
            for baked in step.touches:
                stale = not baked.region.live or (baked.region.use != baked.use and not baked.private)
                if stale:
                    gpu.fault(f"A graph's replay touches {baked.region.name}, recorded at {step.place}, freed since.")
        host = gpu.host()
        queue.follow(host)
        queue.learn(self._clock)
        queue.step()
        self._order(queue, place)
        if self._last is not None:
            queue.needs.append(self._last)
        self._last = queue.append(self._run)
        host.step()

    def _order(self, queue: Queue, place: str) -> None:
        """Checks what each step touches, as if each branch were a stream. The launching queue comes last."""
        after: dict[int, Clock] = {}
        for index, step in enumerate(self._steps):
            actor = self._branches[step.queue]
            if not step.needs:
                actor.learn(queue.clock)
            for need in step.needs:  # which comes after the launching queue too
                if self._steps[need].queue is not step.queue:  # else the branch itself has come after it
                    actor.learn(after[need])
            actor.step()
            for baked in step.touches:
                self._gpu.touch(
                    baked.region,
                    baked.start,
                    baked.end,
                    actor,
                    actor.clock,
                    baked.writes,
                    f"{step.place}, replayed at {place}",
                )
            if index in self._handed_on:
                after[index] = dict(actor.clock)
        for index in self._end:
            queue.learn(after[index])
        self._clock = dict(queue.clock)

    def _run(self) -> None:
        """Does the steps in any order that their dependencies allow."""
        waiting = list(range(len(self._steps)))
        done: set[int] = set()
        while waiting:
            ready = [index for index in waiting[:8] if done.issuperset(self._steps[index].needs)]
            index = ready[self._gpu.choose(len(ready))]
            self._steps[index].run()
            done.add(index)
            waiting.remove(index)


def pool_ids() -> Callable[[], PoolId]:
    """Returns a function that returns a new pool id at each call."""
    count = 0

    def make(*_: Any) -> PoolId:
        nonlocal count
        count += 1
        return (0, count)

    return make
