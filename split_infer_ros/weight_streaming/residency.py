"""Where weights are while a model runs: the pipelines of the paper, and how much memory each takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.weight_streaming.delay_model import Machine, predict
from split_infer_ros.weight_streaming.packed_file import PAGE, pages
from split_infer_ros.weight_streaming.ring import CHUNK, NONE, RingPlan, circular, double_buffered, least_capacity

RESIDENT, SYNCHRONOUS, ASYNCHRONOUS, TWO_STAGE, AUTO = RESIDENCIES = (
    *("resident", "synchronous", "asynchronous", "two_stage", "auto"),
)
MB = 1e6


@dataclass(frozen=True, slots=True)
class Placement:
    """How blocks share memory.

    Attributes:
        resident: so many of the first blocks stay in memory.
        plan: of the ring through which the others go.
    """

    resident: int
    plan: RingPlan


def place(
    residency: str,
    sizes: Sequence[int],
    uses: Sequence[int],
    budget: float = math.inf,
    kept: int = 0,
    chunk: int = CHUNK,
    sides: int = 1,
) -> Placement:
    """The memory of a pipeline.

    Args:
        residency: ``synchronous``: two buffers, each for the largest block, in turns; ``asynchronous``: a ring of the
            budget, or of twice what it needs at least where there is none, but of all blocks at most; ``two_stage``:
            the smallest ring.
        sizes, uses: the blocks', as ``ring.circular`` has them.
        budget: bytes that weights may take.
        kept: of these, bytes that stay in memory in any case.
        chunk: bytes of a portion.
        sides: rings of that size that the budget is for: two, where one is copied to the other.

    Raises:
        ConfigurationError: the budget is too small; the sentence has the number needed.
    """
    least = least_capacity(sizes, uses)
    if residency == SYNCHRONOUS:
        plan = double_buffered(sizes, uses)
        if not plan.feasible:
            raise ConfigurationError(
                "weights_residency synchronous has room for two layers, and this model needs more of them at once: "
                "take asynchronous or two_stage."
            )
    elif residency == ASYNCHRONOUS:
        wanted = 2 * least if math.isinf(budget) else max((budget - kept) / sides, least)
        capacity = min(int(wanted) // PAGE * PAGE, sum(map(pages, sizes)))
        plan = _asynchronous(sizes, uses, capacity, chunk)
    else:
        plan = circular(sizes, uses, least, chunk)
    taken = sides * plan.capacity + kept
    if taken > budget:
        needed = math.ceil(10 * taken / MB) / 10
        raise ConfigurationError(
            f"weights_residency {residency} needs a weights_budget_mb of {needed} for this model, not {budget / MB:g}."
        )
    return Placement(0, plan)


def _asynchronous(sizes: Sequence[int], uses: Sequence[int], capacity: int, chunk: int) -> RingPlan:
    """A ring; or two partitions of it in turns, where large blocks leave a ring nothing to read ahead in.

    The one with the smaller delay, if using a byte takes as long as reading it.
    """
    plans = [circular(sizes, uses, capacity, chunk), double_buffered(sizes, uses, chunk)]
    shares = Counter(uses)
    steps = tuple(sizes[block] / shares[block] if block != NONE else 0.0 for block in uses)
    fitting = [plan for plan in plans if plan.feasible and plan.capacity <= capacity]
    return min(fitting or plans[:1], key=lambda plan: predict(plan, Machine(steps, 0.0, 1.0)))


def keep_first(sizes: Sequence[int], uses: Sequence[int], memory: int, capacity: int) -> Placement | None:
    """A ring of that capacity, and of the first blocks as many in memory as then fit; None if there is no such."""
    fit = [total for total in accumulate(sizes) if total <= memory - capacity]
    resident = len(fit)
    if resident == len(sizes):
        return None
    rest = [block - resident if block >= resident else NONE for block in uses]
    if capacity < max(sizes[resident:], default=0):
        return None
    plan = circular(sizes[resident:], rest, capacity)
    return Placement(resident, plan) if plan.feasible else None
