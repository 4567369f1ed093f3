"""What runs next: a pure function of the queue, the costs and the time (kernel merge and fusion, §II-B).

A window over the head of the queue is looked at. Requests of one model become one batch (merge); models with fewer
parameters than the mean become one execution, those above it another (fuse). The class of the very first request runs
now; the others stay at the head of the queue, where newer requests may join them before their turn. So a window takes
at most two executions (more where that was measured not to pay), the first request is always served, and nobody waits
for company: where one request waits, it runs alone, at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from split_infer_ros.serving.execution_costs import NO_MORE, ExecutionCosts
from split_infer_ros.serving.request import DROP, Request

LATE = 16  # requests that one decision drops at most, so that it is quick however many there are


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of one model that run as one, in their order."""

    model: str
    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done now.

    Attributes:
        batches: one execution: a batch a model, that of the first request first; empty where nothing waits.
        late: requests to be dropped as ``deadline``: they cannot meet theirs, and their tenants want no late results.
    """

    batches: tuple[Batch, ...] = ()
    late: tuple[Request, ...] = ()

    @property
    def requests(self) -> tuple[Request, ...]:
        """All that run."""
        return tuple(request for batch in self.batches for request in batch.requests)


@dataclass(frozen=True, slots=True)
class Rules:
    """How requests may be put together.

    Attributes:
        window: how many requests are looked at, at least 1.
        most: of one batch.
        fuse: whether several models may be one execution.
    """

    window: int = 5
    most: int = 64
    fuse: bool = True


def decide(
    queue: Sequence[Request],
    costs: ExecutionCosts,
    now: float,
    rules: Rules,
    busy: Collection[str] = (),
    fastest: ExecutionCosts | None = None,
) -> Decision:
    """The next execution; where there is none, but some are late, ask again: there may be more behind them.

    Args:
        queue: in order; only its head is looked at: a window, and before it as many who are late, at most ``LATE``.
        costs: of every model in the queue.
        now: seconds, of the steady clock.
        rules: how requests may be put together.
        busy: tenants of whom a frame is under way on another lane; theirs are passed over, so that none overtakes it.
        fastest: costs of a faster way, if there is one: who is not the first may still get it, and is late by it alone.
    """
    fastest = fastest or costs
    window: list[Request] = []
    late: list[Request] = []
    for request in queue:
        if request.tenant in busy:
            continue
        alone_s = (fastest if window else costs).batch_s(request.model, 1)
        if request.when_late == DROP and now + alone_s > request.deadline_s:
            late.append(request)
            if len(late) == LATE:
                break
        else:
            window.append(request)
            if len(window) == rules.window:
                break
    return Decision(_together(window, costs, now, rules) if window else (), tuple(late))


def _together(window: Sequence[Request], costs: ExecutionCosts, now: float, rules: Rules) -> tuple[Batch, ...]:
    """The execution that serves the first request, and with it all others that it may.

    Batches are as large, and fused, as saves time; what is beyond that has its turn next, perhaps on another lane.
    Nobody misses a deadline for company's sake: those who would meet theirs without it still do.
    """
    first = window[0]
    waiting = Counter([request.model for request in window])
    enough = {model: min(rules.most, costs.best_size(model, count)) for model, count in waiting.items()}
    small = costs.is_small(first.model)
    chosen: dict[str, list[Request]] = {first.model: []}
    counts: dict[str, int] = {}
    spent, tightest = 0.0, math.inf  # of the execution so far: its seconds, and the first deadline that it meets
    left: set[str] = set()  # tenants of whom one stays, and so whatever comes behind it
    for request in window:
        model = request.model
        count = counts.get(model, 0)
        may_join = (
            request.tenant not in left
            and count < enough[model]
            and (model in chosen or (rules.fuse and costs.is_small(model) == small))
        )
        if may_join:
            counts[model] = count + 1
            longer = costs.execution_s(counts)
            meets = now + longer <= request.deadline_s
            if request is first or (
                (count or (1 + NO_MORE) * longer <= spent + costs.batch_s(model, 1))
                and now + longer <= tightest
                and (meets or request.when_late != DROP)
            ):
                chosen.setdefault(model, []).append(request)
                spent = longer
                if meets and request.deadline_s < tightest:
                    tightest = request.deadline_s
                continue
            if count:
                counts[model] = count
            else:
                del counts[model]
        left.add(request.tenant)
    return tuple(Batch(model, tuple(requests)) for model, requests in chosen.items())
