"""One ring and one reader for the weights of all models, which then run one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.serving.execution_costs import ExecutionCosts
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import Decision, Rules, decide
from split_infer_ros.serving.served_model import ServedModel
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.ring_memory import RingMemory, page_aligned


def make_ring(settings: SharedSettings, device: torch.device) -> RingMemory | None:
    """Where all models' weights are in their turn; None if they are to be resident.

    Raises:
        ConfigurationError: models run on a GPU.
    """
    if not settings.weights_budget_bytes:
        return None
    if device.type != "cpu":
        raise ConfigurationError(
            f"weights_budget_mb is for tenants on the CPU, and these are on {device}: leave it at 0."
        )
    return RingMemory(page_aligned(int(settings.weights_budget_bytes) // PAGE * PAGE))


def expect_next(
    lines: Mapping[str, ServedModel],
    decision: Decision,
    queue: Sequence[Request],
    costs: ExecutionCosts,
    now: float,
    rules: Rules,
) -> None:
    """Have the first weights read of what will run after that decision, as far as the queue tells by now."""
    if not decision.batches or lines[decision.batches[0].model].plan.stream is None:
        return
    gone = {request.number for request in (*decision.requests, *decision.late)}
    waiting = [request for request in queue if request.number not in gone]
    for batch in decide(waiting, costs, now, rules).batches:
        stream = lines[batch.model].plan.stream
        if stream is not None:
            stream.expect_next()
