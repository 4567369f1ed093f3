"""Which executions are under way, and what may begin beside them: with all cores, or on a lane of one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from split_infer_ros.serving.execution_modes import ExecutionModes
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import Decision, Rules, decide


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """An execution, and where it has its turn.

    Attributes:
        decision: what is executed; without batches nothing begins.
        lane: which one; None: all cores, or the GPU.
        seconds: that it should take.
    """

    decision: Decision = field(default_factory=Decision)
    lane: int | None = None
    seconds: float = 0.0


class LaneScheduler:
    """Knows what is under way; has no clock, and whoever calls holds a lock.

    A lane that is free begins with what is next while the others go on, but passes over cameras of which a frame is
    under way, so that none overtakes another. All cores together are for requests that are sooner done so, and for the
    one whose deadline only they can meet.

    No request starves: it waits at most 2 n + 1 of the longest executions, where n counts the requests that are ever
    before it in the queue and the executions that it finds under way. For while it waits, one of these n is under way,
    or lanes are let run empty for all cores to serve one of them, or itself, next. What comes behind it adds nothing.

    Args:
        lanes: how many, one a core; 0: there is one way alone.
        depth: executions that may be given to all cores, or the GPU, one right behind the other.
    """

    def __init__(self, lanes: int = 0, depth: int = 1) -> None:
        self._free = list(range(lanes))
        self._depth = depth
        self._ends_s: dict[Turn, float] = {}  # when each that is under way should end
        self._latest_s = math.inf  # when the latest began

    @property
    def is_idle(self) -> bool:
        """True while nothing is under way."""
        return not self._ends_s

    def choose(self, queue: Sequence[Request], ways: ExecutionModes, now: float, rules: Rules) -> Turn:
        """What is to begin now, if anything is; its decision may name some who are late in either case.

        Args:
            queue: in order; of models that have a free slot.
            ways: costs of every model in the queue.
            now: seconds, of the steady clock.
            rules: how requests may be put together; on a lane models are not fused.
        """
        on_lanes = any(turn.lane is not None for turn in self._ends_s)
        has_room = bool(self._free) if on_lanes else len(self._ends_s) < self._depth
        if not has_room or not len(queue):
            return Turn()
        if self._is_for_all(queue[: rules.window], ways, now):
            return Turn() if on_lanes else _turn(decide(queue, ways.whole, now, rules), None, ways)
        busy = {request.tenant for turn in self._ends_s for request in turn.decision.requests}
        decision = decide(queue, ways.lane, now, replace(rules, fuse=False), busy, ways.whole)
        return _turn(decision, min(self._free), ways)

    def begin(self, turn: Turn, now: float) -> None:
        """It begins."""
        self._ends_s[turn] = now + turn.seconds
        self._latest_s = now
        if turn.lane is not None:
            self._free.remove(turn.lane)

    def end(self, turn: Turn) -> None:
        """It came to its end."""
        del self._ends_s[turn]
        if turn.lane is not None:
            self._free.append(turn.lane)

    def _is_for_all(self, window: Sequence[Request], ways: ExecutionModes, now: float) -> bool:
        if not ways.lanes_serve_more:
            return True
        first = window[0]
        together_s = max([now, *self._ends_s.values()]) + ways.whole.batch_s(first.model, 1)
        if together_s <= first.deadline_s < now + ways.lane.batch_s(first.model, 1):
            return True
        more_come = any(request.arrival_s > self._latest_s for request in window)
        return self.is_idle and ways.sooner_together(window, more_come)


def _turn(decision: Decision, lane: int | None, ways: ExecutionModes) -> Turn:
    costs = ways.whole if lane is None else ways.lane
    counts = {batch.model: len(batch.requests) for batch in decision.batches}
    return Turn(decision, lane, costs.execution_s(counts))
