"""Tracks which executions are running, and decides which one may start: on all cores, or on the lane of one core."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Decision, Rules, decide


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledExecution:
    """An execution, and where it runs.

    Attributes:
        decision: what is executed; without batches nothing starts.
        lane: the index of the lane; None for all cores, or the GPU.
        seconds: the expected duration.
    """

    decision: Decision = field(default_factory=Decision)
    lane: int | None = None
    seconds: float = 0.0


class LaneScheduler:
    """Decides which execution starts next, and on which lane; has no clock, and its caller holds a lock.

    A free lane starts the next requests while other lanes are at work. It skips tenants with a frame in execution, so
    that no frame overtakes an earlier one of its tenant. All cores together serve the requests that are done sooner
    that way. They also serve a first request whose deadline only they can meet.

    No request starves. Let n be the number of requests that are ever before it in the queue, plus the executions that
    run when it arrives. It waits for at most 2 n + 1 of the longest executions. While it waits, one of these n runs.
    Otherwise lanes are drained, so that all cores can serve one of them, or the request itself, next. Requests behind
    it add nothing.

    Args:
        num_lanes: one a core; 0 if all cores, or the GPU, are the only execution mode.
        depth: how many executions all cores, or the GPU, may be given ahead.
    """

    def __init__(self, num_lanes: int = 0, depth: int = 1) -> None:
        self._free_lanes = list(range(num_lanes))
        self._depth = depth
        self._expected_ends_s: dict[ScheduledExecution, float] = {}
        self._latest_begin_s = math.inf

    @property
    def is_idle(self) -> bool:
        """True while nothing is running."""
        return not self._expected_ends_s

    def choose(
        self, queue: Sequence[Request], modes: ExecutionModes, *, now: float, rules: Rules
    ) -> ScheduledExecution:
        """Returns the execution that starts now; without batches, nothing does. Its decision may name late requests.

        Args:
            queue: requests in order, of the models that have a free slot.
            modes: costs of every model in the queue.
            now: seconds of the steady clock.
            rules: how requests may be combined; lanes do not fuse models, but may run a stack.
        """
        lanes_run = any(execution.lane is not None for execution in self._expected_ends_s)
        has_room = bool(self._free_lanes) if lanes_run else len(self._expected_ends_s) < self._depth
        if not has_room or not len(queue):
            return ScheduledExecution()
        if self._needs_all_cores(queue[: rules.window], modes, now):
            if lanes_run:
                return ScheduledExecution()
            return _scheduled(decide(queue, modes.whole, now=now, rules=rules), None, modes)
        busy_tenants = {
            request.tenant for execution in self._expected_ends_s for request in execution.decision.requests
        }
        decision = decide(
            queue,
            modes.lane,
            now=now,
            rules=replace(rules, fuse=False),
            busy_tenants=busy_tenants,
            fastest_costs=modes.whole,
        )
        return _scheduled(decision, min(self._free_lanes), modes)

    def begin(self, execution: ScheduledExecution, now: float) -> None:
        """Notes that the execution starts."""
        self._expected_ends_s[execution] = now + execution.seconds
        self._latest_begin_s = now
        if execution.lane is not None:
            self._free_lanes.remove(execution.lane)

    def end(self, execution: ScheduledExecution) -> None:
        """Notes that the execution ended."""
        del self._expected_ends_s[execution]
        if execution.lane is not None:
            self._free_lanes.append(execution.lane)

    def _needs_all_cores(self, window: Sequence[Request], modes: ExecutionModes, now: float) -> bool:
        if not modes.lanes_serve_more:
            return True
        first = window[0]
        whole_end_s = max([now, *self._expected_ends_s.values()]) + modes.whole.batch_s(first.model, 1)
        if whole_end_s <= first.deadline_s < now + modes.lane.batch_s(first.model, 1):
            return True
        more_arrive = any(request.arrival_s > self._latest_begin_s for request in window)
        return self.is_idle and modes.all_cores_finish_sooner(window, more_arrive=more_arrive)


def _scheduled(decision: Decision, lane: int | None, modes: ExecutionModes) -> ScheduledExecution:
    costs = modes.whole if lane is None else modes.lane
    counts = {batch.model: len(batch.requests) for batch in decision.batches}
    seconds = costs.stacks[decision.stack].execution_s(counts) if decision.stack else costs.execution_s(counts)
    return ScheduledExecution(decision, lane, seconds)
