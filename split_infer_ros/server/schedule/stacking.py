"""Decides when requests of several models of one architecture run as one network, a stack. It is a pure function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.server.schedule.execution_costs import ExecutionCosts, StackCosts
from split_infer_ros.server.schedule.request import LatePolicy, Request


@dataclass(frozen=True, slots=True)
class StackedExecution:
    """An execution of a stack.

    Attributes:
        stack: the name of the stack.
        requests: the requests that it serves, in their order.
        seconds: the seconds of the execution, including blank images.
    """

    stack: str
    requests: tuple[Request, ...]
    seconds: float


def best_stacked_execution(
    window: Sequence[Request], costs: ExecutionCosts, *, now: float, max_batch_size: int
) -> StackedExecution | None:
    """Returns the execution of the first request's stack that costs least for each request; None if there is none.

    The network computes as many images of each member as the largest batch has. Blank images fill up smaller batches,
    and stand for members without requests. Each measured number of images is tried with the first requests of every
    member.

    An execution is not considered if a request in it would be late, but would meet its deadline alone. It is also not
    considered if a request in it would be late, and its tenant wants late frames dropped.

    Args:
        window: requests in order, the first one first.
        costs: the costs of every model in the window.
        now: seconds of the steady clock.
        max_batch_size: how many requests of one model may run.
    """
    name = costs.stack_of(window[0].model)
    if not name:
        return None
    stack = costs.stacks[name]
    found = []
    for size, seconds in stack.seconds.items():
        requests = _first_requests(window, stack, min(size, max_batch_size))
        if len({request.model for request in requests}) > 1 and _keeps_deadlines(requests, costs, now, seconds):
            found.append(StackedExecution(name, requests, seconds))
    return min(found, key=lambda execution: execution.seconds / len(execution.requests), default=None)


def _first_requests(window: Sequence[Request], stack: StackCosts, size: int) -> tuple[Request, ...]:
    """Returns the first ``size`` requests of each member, in the order of the window.

    No request overtakes another one of its tenant, because a tenant has one model.
    """
    counts = dict.fromkeys(stack.members, 0)
    requests = []
    for request in window:
        if counts.get(request.model, size) < size:
            counts[request.model] += 1
            requests.append(request)
    return tuple(requests)


def _keeps_deadlines(requests: Sequence[Request], costs: ExecutionCosts, now: float, seconds: float) -> bool:
    return all(
        now + seconds <= request.deadline_s
        or (request.when_late is not LatePolicy.DROP and now + costs.batch_s(request.model, 1) > request.deadline_s)
        for request in requests
    )
