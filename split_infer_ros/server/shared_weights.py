"""One ring buffer for the weights of all models. The models then run one after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import Device
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Decision, Rules, decide
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.ring_memory import RingMemory, page_aligned


def make_ring_memory(settings: SharedSettings, device: Device) -> RingMemory | None:
    """Returns the ring buffer through which the weights of all models are streamed; None if weights stay in memory.

    Raises:
        ConfigurationError: models run on a GPU, the ring has no size, or the residency is ``auto``.
    """
    if not settings.shares_ring:
        return None
    residency = settings.weights_residency
    if device.type != "cpu":
        raise ConfigurationError(
            f"weights_residency {residency.value} is for tenants on the CPU, and these are on {device}: take resident."
        )
    if residency is Residency.AUTO:
        raise ConfigurationError(
            "weights_residency auto chooses the memory of one model, and tenants share a ring of weights_budget_mb: "
            "take asynchronous."
        )
    if math.isinf(settings.weights_budget_bytes):
        raise ConfigurationError(
            f"weights_residency {residency.value} needs a weights_budget_mb above 0 for tenants: the size of the ring "
            "that their models share."
        )
    return RingMemory(page_aligned(int(settings.weights_budget_bytes) // PAGE * PAGE))


def prefetch_next(
    models: Mapping[str, ServedModel],
    decision: Decision,
    queue: Sequence[Request],
    costs: ExecutionCosts,
    *,
    now: float,
    rules: Rules,
) -> None:
    """Has the ring prefetch the first weights of the models that will probably run after this decision.

    Args:
        models: the models that are served, by key.
        decision: what runs now. If it has no batches, nothing is prefetched.
        queue: requests in order, including those of the decision.
        costs: the costs of every model in the queue.
        now: seconds of the steady clock.
        rules: how requests may be combined.
    """
    if not decision.batches or models[decision.batches[0].model].plan.streamed is None:
        return
    decided = {request.number for request in (*decision.requests, *decision.late)}
    remaining = [request for request in queue if request.number not in decided]
    for batch in decide(remaining, costs, now=now, rules=rules).batches:
        stream = models[batch.model].plan.streamed
        if stream is not None:
            stream.expect_next()
