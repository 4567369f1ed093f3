"""Decides what runs next: a pure function of the queue, the costs and the time (kernel merge and fusion, §II-B).

The scheduler looks at a window at the front of the queue. It merges the requests of one model into one batch. It fuses
models of one size class into one execution. The size classes are models with fewer parameters than the mean, and the
other models. Models of one architecture may run as one network instead, a stack.

If the costs of a model are not known, its requests are merged, unless the rules say otherwise. It is not fused with
other models.

The size class of the first request runs now. The other requests stay at the front of the queue, and newer requests may
join them until they run. Therefore a window takes at most two executions, or more if measurements show no gain. The
first request is always served. No request waits for others: a single request runs alone, at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from split_infer_ros.server.schedule.execution_costs import NOISE_MARGIN, ExecutionCosts
from split_infer_ros.server.schedule.joining import saves_time
from split_infer_ros.server.schedule.request import LatePolicy, Request
from split_infer_ros.server.schedule.stacking import best_stacked_execution

MAX_LATE = 16  # the most requests that one decision drops, so that a decision is quick if many are late

_DROP = LatePolicy.DROP  # looked up once, because every decision compares it with many requests


@dataclass(frozen=True, slots=True)
class RequestBatch:
    """Requests of one model, in their order, that run as one batch."""

    model: str
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What the scheduler decided at one moment.

    Attributes:
        batches: one execution, with one batch for each model. The model of the first request comes first. Empty if
            nothing runs.
        late: requests to drop as ``deadline``. They cannot meet their deadlines, and their tenants want no late
            results.
        stack: the name of the stack that computes the batches as one network; empty if each model computes its own.
    """

    batches: tuple[RequestBatch, ...] = ()
    late: tuple[Request, ...] = ()
    stack: str = ""

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests of the execution."""
        return tuple(request for batch in self.batches for request in batch.requests)


@dataclass(frozen=True, slots=True)
class Rules:
    """How the scheduler may combine requests.

    Attributes:
        window: how many requests the scheduler looks at, at least 1.
        max_batch_size: how many requests one batch may have.
        fuse: whether several models may run as one execution, each by its own network.
        stack: whether models of one architecture may run as one network.
        timeout_s: how long a model's oldest request waits for others before a batch that is not full may run.
        merge_unknown: whether requests are merged on the cores of a CPU while their model's costs are not known.
    """

    window: int = 5
    max_batch_size: int = 64
    fuse: bool = True
    stack: bool = True
    timeout_s: float = 0.0
    merge_unknown: bool = True

    @property
    def largest_batch(self) -> int:
        """The most requests of one model that an execution can have. A decision looks at one window of requests."""
        return min(self.window, self.max_batch_size)


def due_at(queue: Iterable[Request], costs: ExecutionCosts, rules: Rules) -> dict[str, float]:
    """Returns for each model when its next batch may run, in seconds of the steady clock.

    A full batch may run at once: its time is that since which its oldest request waits. A batch is full if no more
    requests of the model would join it. Either the rules do not allow more, or a larger batch would save nothing.

    Args:
        queue: the requests that wait.
        costs: the costs of executions, as far as they are known.
        rules: how requests may be combined.
    """
    since_s: dict[str, list[float]] = {}
    for request in queue:
        since_s.setdefault(request.model, []).append(request.waits_from_s)
    return {
        model: min(found)
        + (0.0 if len(found) >= costs.best_batch_size(model, rules.largest_batch) else rules.timeout_s)
        for model, found in since_s.items()
    }


def decide(
    queue: Sequence[Request],
    costs: ExecutionCosts,
    *,
    now: float,
    rules: Rules,
    fastest_costs: ExecutionCosts | None = None,
    num_at_once: int | None = None,
) -> Decision:
    """Returns the next execution, and requests that are too late.

    A decision may name late requests only. The caller then calls again, because other requests may wait behind them.

    Args:
        queue: requests in order. A decision looks at one window of requests, and at up to ``MAX_LATE`` late ones.
        costs: the costs of every model in the queue.
        now: seconds of the steady clock.
        rules: how requests may be combined.
        fastest_costs: the costs of a faster execution mode, if there is one. ``costs`` decide whether the first request
            is late. The others may still run in the faster mode, so ``fastest_costs`` decide for them.
        num_at_once: how many executions run at the same time, on a CPU with lanes; None elsewhere. See
            ``saves_time``.
    """
    fastest_costs = fastest_costs or costs
    window: list[Request] = []
    late: list[Request] = []
    for request in queue:
        alone_s = (fastest_costs if window else costs).batch_s(request.model, 1)
        if request.when_late is _DROP and now + alone_s > request.deadline_s:
            late.append(request)
            if len(late) == MAX_LATE:
                break
        else:
            window.append(request)
            if len(window) == rules.window:
                break
    if not window:
        return Decision(late=tuple(late))
    if len(window) == 1:  # nothing can join the first request, which is always served
        return Decision((RequestBatch(window[0].model, (window[0],)),), tuple(late))
    batches = _combine(window, costs, now=now, rules=rules, num_waiting=len(queue) - len(late), num_at_once=num_at_once)
    if rules.stack and costs.stacks:
        stacked = best_stacked_execution(window, costs, now=now, max_batch_size=rules.max_batch_size)
        if stacked is not None:
            counts = {batch.model: len(batch.requests) for batch in batches}
            request_s = costs.execution_s(counts) / sum(counts.values())
            if (1 + NOISE_MARGIN) * stacked.seconds / len(stacked.requests) <= request_s:
                return Decision(_by_model(stacked.requests), tuple(late), stacked.stack)
    return Decision(batches, tuple(late))


def _combine(
    window: Sequence[Request],
    costs: ExecutionCosts,
    *,
    now: float,
    rules: Rules,
    num_waiting: int,
    num_at_once: int | None,
) -> tuple[RequestBatch, ...]:
    """Returns the execution that serves the first request, and all requests that may join it.

    A request joins only if that saves time; see ``saves_time``. The other requests run next, perhaps on another lane.
    No request misses its deadline because others join: requests that would meet their deadline alone still meet it.
    """
    first = window[0]
    waiting = Counter([request.model for request in window])
    may_merge_all = rules.merge_unknown or num_at_once is None
    max_counts = {
        model: min(rules.max_batch_size, costs.best_batch_size(model, count))
        if may_merge_all or costs.knows(model)
        else 1
        for model, count in waiting.items()
    }
    is_small, knows_first = costs.is_small(first.model), costs.knows(first.model)
    chosen: dict[str, list[Request]] = {first.model: []}
    counts: dict[str, int] = {}
    execution_s = 0.0  # the seconds of the requests chosen so far
    tightest_deadline_s = math.inf  # the earliest deadline that the requests chosen so far meet
    skipped: set[tuple[str, str]] = set()  # sources with a request that was not chosen; later ones must not overtake it
    for request in window:
        model = request.model
        count = counts.get(model, 0)
        may_join = (
            request.source not in skipped
            and count < max_counts[model]
            and (
                model in chosen
                or (rules.fuse and knows_first and costs.knows(model) and costs.is_small(model) == is_small)
            )
        )
        if may_join:
            counts[model] = count + 1
            joined_s = costs.execution_s(counts)
            meets_deadline = now + joined_s <= request.deadline_s
            if request is first or (
                saves_time(
                    joined_s,
                    execution_s,
                    costs.batch_s(model, 1),
                    is_merged=count > 0,
                    num_joined=sum(counts.values()) - 1,
                    num_waiting=num_waiting,
                    num_at_once=None if rules.timeout_s else num_at_once,
                )
                and now + joined_s <= tightest_deadline_s
                and (meets_deadline or request.when_late is not _DROP)
            ):
                chosen.setdefault(model, []).append(request)
                execution_s = joined_s
                if meets_deadline and request.deadline_s < tightest_deadline_s:
                    tightest_deadline_s = request.deadline_s
                continue
            if count:
                counts[model] = count
            else:
                del counts[model]
        skipped.add(request.source)
    return tuple(RequestBatch(model, tuple(requests)) for model, requests in chosen.items())


def _by_model(requests: Sequence[Request]) -> tuple[RequestBatch, ...]:
    batches: dict[str, list[Request]] = {}
    for request in requests:
        batches.setdefault(request.model, []).append(request)
    return tuple(RequestBatch(model, tuple(own)) for model, own in batches.items())
