"""Tracks which executions are running, and decides which one may start: on all cores, or on a lane."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.lane_rule import LaneRule, LaneTrial
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Decision, Rules, decide

BESIDE = 0.8  # an execution shows what lanes cost if all lanes are at work for this share of its time


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledExecution:
    """An execution, and where it runs.

    Attributes:
        decision: what is executed. Without batches, nothing starts.
        lane: the index of the lane; None for all cores, or the GPU.
        seconds: the expected duration; 0 if it is not known.
        misses_lane: whether it has all cores only because the model of its first request may not use lanes.
    """

    decision: Decision = field(default_factory=Decision)
    lane: int | None = None
    seconds: float = 0.0
    misses_lane: bool = False

    @property
    def sources(self) -> set[tuple[str, str]]:
        """The sources of its frames: tenants and their cameras."""
        return {request.source for request in self.decision.requests}


@dataclass(frozen=True, slots=True)
class _Running:
    """An execution that runs.

    Attributes:
        began: when the execution began.
        expected_end: when it is expected to end.
        full_s: the seconds for which all lanes had been at work before it began.
    """

    began: float
    expected_end: float
    full_s: float


class LaneScheduler:
    """Decides which execution starts next, and on which lane. It has no clock, and its caller holds a lock.

    A free lane starts the next requests while other lanes are at work. Frames of one source may run on several lanes.
    The executor keeps their order when it hands batches over to heads. All cores together serve requests that are done
    sooner that way. They also serve the first request if only they can meet its deadline. While the costs of a model
    are not known, ``LaneRule`` decides.

    No request starves while costs are known. Let n be the number of requests that are ever before it in the queue, plus
    the executions that run when it arrives. The request waits for at most 2 n + 1 of the longest executions. While it
    waits, one of these n runs. Otherwise no lane starts anything until all lanes are idle. Then all cores serve one of
    the n, or the request itself. Requests behind it add nothing.

    Args:
        num_lanes: number of lanes; 0 if all cores, or the GPU, are the only execution mode.
        depth: how many executions all cores, or the GPU, may have at a time.
    """

    def __init__(self, num_lanes: int = 0, depth: int = 1) -> None:
        self._num_lanes = num_lanes
        self._free_lanes = list(range(num_lanes))
        self._use: tuple[float, float | None] | None = None  # the time and the processor time at the last change
        self._depth = depth
        self._running: dict[ScheduledExecution, _Running] = {}
        self._full_s = 0.0  # the seconds for which all lanes were at work so far
        self._trials: defaultdict[str, LaneTrial] = defaultdict(lambda: LaneTrial(num_lanes))
        self._latest_begin_s = math.inf
        self._rule = LaneRule()

    @property
    def has_lanes(self) -> bool:
        """Whether executions may run on lanes at all."""
        return self._num_lanes > 0

    @property
    def is_idle(self) -> bool:
        """True while nothing is running."""
        return not self._running

    def choose(
        self,
        queue: Sequence[Request],
        modes: ExecutionModes,
        *,
        now: float,
        rules: Rules,
        on_lanes: Collection[str] | None = None,
    ) -> ScheduledExecution:
        """Returns the execution that starts now. If it has no batches, nothing starts.

        Its decision may name late requests, which the caller drops.

        Args:
            queue: requests of models with a free slot, in order.
            modes: costs of the models in the queue, as far as they are known.
            now: seconds of the steady clock.
            rules: how requests may be combined. Lanes do not fuse models, but may run a stack.
            on_lanes: the models that may use lanes; None: all.
        """
        lanes_run = len(self._free_lanes) < self._num_lanes
        has_room = bool(self._free_lanes) if lanes_run else len(self._running) < self._depth
        if not has_room or not len(queue):
            return ScheduledExecution()
        window = queue[: rules.window]
        wants_lane = not self._needs_all_cores(window, modes, now)
        misses_lane = wants_lane and on_lanes is not None and queue[0].model not in on_lanes
        if misses_lane or not wants_lane or self._lacks_comparison(window, modes):
            if lanes_run:
                return ScheduledExecution()
            num_at_once = 1 if self._num_lanes else None
            decision = decide(queue, modes.whole, now=now, rules=rules, num_at_once=num_at_once)
            return _scheduled(decision, None, modes, misses_lane)
        able = queue if on_lanes is None else [request for request in queue if request.model in on_lanes]
        decision = decide(
            able,
            modes.lane,
            now=now,
            rules=_without_fusing(rules),
            fastest_costs=modes.whole,
            num_at_once=self._num_lanes,
        )
        return _scheduled(decision, min(self._free_lanes), modes)

    def begin(self, execution: ScheduledExecution, now: float, processor_s: float | None = None) -> None:
        """Notes that the execution starts.

        Args:
            execution: the execution.
            now: seconds of the steady clock.
            processor_s: the processor time of the process so far; None if it is not known.
        """
        self._note_use(now, processor_s)
        self._rule.begin(now, on_lane=execution.lane is not None, is_idle=self.is_idle)
        self._running[execution] = _Running(now, now + execution.seconds, self._full_s)
        self._latest_begin_s = now
        if execution.lane is not None:
            self._free_lanes.remove(execution.lane)

    def end(self, execution: ScheduledExecution, now: float, processor_s: float | None = None) -> None:
        """Notes that the execution ended. The arguments are those of ``begin``."""
        self._note_use(now, processor_s)
        running = self._running.pop(execution)
        took_s, on_lane = now - running.began, execution.lane is not None
        self._rule.end(took_s, on_lane=on_lane)
        is_alone = on_lane and self._full_s - running.full_s < BESIDE * took_s
        if self._num_lanes and len(execution.decision.batches) == 1 and not is_alone:
            (batch,) = execution.decision.batches
            self._trials[batch.model].note(took_s, num_images=len(batch.requests), on_lane=on_lane)
        if execution.lane is not None:
            self._free_lanes.append(execution.lane)

    def lanes_pay(self, model: str, limit: float = math.inf) -> bool:
        """Returns False if executions have shown that lanes do not pay for a model; see ``LaneTrial``.

        Args:
            model: the name of the model.
            limit: how many times as long as on all cores an execution may take on a lane.
        """
        return self._trials[model].lanes_pay(min(limit, self._num_lanes)) is not False

    def forget(self, model: str) -> None:
        """Forgets what executions of a model have shown. Call it when the model's plan changes."""
        self._trials.pop(model, None)

    def _note_use(self, now: float, processor_s: float | None) -> None:
        """Notes how much time passed, and how much processor time the process got, while all lanes were at work."""
        before, self._use = self._use, (now, processor_s)
        if before is None or not self._num_lanes or self._free_lanes or now <= before[0]:
            return
        seconds = now - before[0]
        self._full_s += seconds
        if processor_s is not None and before[1] is not None:
            self._rule.note_share((processor_s - before[1]) / (seconds * self._num_lanes), seconds, now)

    def _lacks_comparison(self, window: Sequence[Request], modes: ExecutionModes) -> bool:
        """Returns whether executions on all cores must first show what lanes are compared with."""
        model = window[0].model
        num_images = sum(request.model == model for request in window)
        return not modes.knows(model) and self._trials[model].needs_all_cores(num_images)

    def _needs_all_cores(self, window: Sequence[Request], modes: ExecutionModes, now: float) -> bool:
        if not self._free_lanes:
            return True
        if not all(modes.knows(request.model) for request in window):
            return not self._rule.wants_lanes(now, is_idle=self.is_idle)
        if not modes.lanes_serve_more or (self.is_idle and self._rule.is_paused(now)):
            return True
        first = window[0]
        expected_ends_s = [running.expected_end for running in self._running.values()]
        whole_end_s = max([now, *expected_ends_s]) + modes.whole.batch_s(first.model, 1)
        if whole_end_s <= first.deadline_s < now + modes.lane.batch_s(first.model, 1):
            return True
        more_arrive = any(request.arrival_s > self._latest_begin_s for request in window)
        return self.is_idle and modes.all_cores_finish_sooner(window, more_arrive=more_arrive)


@lru_cache(maxsize=1)  # rules change rarely, and each decision on a lane asks
def _without_fusing(rules: Rules) -> Rules:
    return replace(rules, fuse=False)


def _scheduled(
    decision: Decision, lane: int | None, modes: ExecutionModes, misses_lane: bool = False
) -> ScheduledExecution:
    costs = modes.whole if lane is None else modes.lane
    counts = {batch.model: len(batch.requests) for batch in decision.batches}
    seconds = costs.stacks[decision.stack].execution_s(counts) if decision.stack else costs.execution_s(counts)
    return ScheduledExecution(decision, lane, seconds, misses_lane)
