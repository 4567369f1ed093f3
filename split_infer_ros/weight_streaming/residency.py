"""Where weights are while a model runs: the pipelines of the paper, and how much memory each of them takes."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.packed_header import PAGE, round_up_to_pages
from split_infer_ros.weight_streaming.ring_plan import (
    CHUNK_BYTES,
    NO_BLOCK,
    RingPlan,
    min_capacity,
    plan_double_buffer,
    plan_ring,
)

MB = 1e6


class Residency(enum.Enum):
    """Where a partition's weights are while it runs, as the parameter ``weights_residency`` names it.

    - ``RESIDENT``: all weights stay in memory.
    - ``SYNCHRONOUS``: weights are read into two buffers in turns.
    - ``ASYNCHRONOUS``: weights are read ahead into a ring buffer.
    - ``TWO_STAGE``: weights are read into the smallest ring buffer.
    - ``AUTO``: the ring and the layers that stay in memory are chosen by measurements.
    """

    RESIDENT = "resident"
    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"
    TWO_STAGE = "two_stage"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the blocks of a partition share memory.

    Attributes:
        resident_blocks: how many of the first blocks stay in memory.
        ring: of the other blocks.
    """

    resident_blocks: int
    ring: RingPlan


def plan_memory(
    residency: Residency,
    block_sizes: Sequence[int],
    step_blocks: Sequence[int],
    *,
    budget_bytes: float = math.inf,
    kept_bytes: int = 0,
    chunk_bytes: int = CHUNK_BYTES,
    sides: int = 1,
) -> MemoryPlan:
    """Plans the memory of a pipeline.

    Args:
        residency: ``SYNCHRONOUS`` takes two buffers of the largest block each. ``ASYNCHRONOUS`` takes a ring of the
            whole budget. Without a budget it takes twice the smallest ring. It never takes more than all blocks.
            ``TWO_STAGE`` takes the smallest ring.
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        budget_bytes: which weights may take.
        kept_bytes: part of the budget for weights that always stay in memory.
        chunk_bytes: size of a read.
        sides: how many rings of that size share the budget: two if one is copied to the other.

    Raises:
        ConfigurationError: the budget is too small, or the model does not fit into two buffers.
    """
    smallest = min_capacity(block_sizes, step_blocks)
    if residency is Residency.SYNCHRONOUS:
        ring = plan_double_buffer(block_sizes, step_blocks)
        if not ring.is_feasible:
            raise ConfigurationError(
                "weights_residency synchronous has room for two layers, and this model needs more of them at once: "
                "take asynchronous or two_stage."
            )
    elif residency is Residency.ASYNCHRONOUS:
        wanted = 2 * smallest if math.isinf(budget_bytes) else max((budget_bytes - kept_bytes) / sides, smallest)
        capacity = min(int(wanted) // PAGE * PAGE, sum(map(round_up_to_pages, block_sizes)))
        ring = _plan_asynchronous(block_sizes, step_blocks, capacity, chunk_bytes)
    else:
        ring = plan_ring(block_sizes, step_blocks, smallest, chunk_bytes=chunk_bytes)
    taken = sides * ring.capacity + kept_bytes
    if taken > budget_bytes:
        needed_mb = math.ceil(10 * taken / MB) / 10
        raise ConfigurationError(
            f"weights_residency {residency.value} needs a weights_budget_mb of {needed_mb} for this model, "
            f"not {budget_bytes / MB:g}."
        )
    return MemoryPlan(0, ring)


def _plan_asynchronous(
    block_sizes: Sequence[int], step_blocks: Sequence[int], capacity: int, chunk_bytes: int
) -> RingPlan:
    """Returns a ring, or two buffers in turns where large blocks leave a ring no room to read ahead.

    The plan with the smaller delay wins, assuming that using a byte takes as long as reading it.
    """
    plans = [
        plan_ring(block_sizes, step_blocks, capacity, chunk_bytes=chunk_bytes),
        plan_double_buffer(block_sizes, step_blocks, chunk_bytes=chunk_bytes),
    ]
    fitting = [plan for plan in plans if plan.is_feasible and plan.capacity <= capacity]
    use_counts = Counter(step_blocks)
    step_s = tuple(block_sizes[block] / use_counts[block] if block != NO_BLOCK else 0.0 for block in step_blocks)
    balanced = StreamingProfile(step_s=step_s, tail_s=0.0, bandwidth=1.0)
    return min(fitting or plans[:1], key=lambda plan: predict_delay(plan, balanced))


def plan_resident_blocks(
    block_sizes: Sequence[int], step_blocks: Sequence[int], *, memory_bytes: int, capacity: int
) -> MemoryPlan | None:
    """Plans a ring of that capacity, with as many of the first blocks in memory as fit beside it.

    Args:
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        memory_bytes: for the ring and the resident blocks.
        capacity: of the ring, bytes.

    Returns:
        None if all blocks fit into memory, or the ring is too small.
    """
    resident = sum(total <= memory_bytes - capacity for total in accumulate(block_sizes))
    if resident == len(block_sizes):
        return None
    if capacity < max(block_sizes[resident:], default=0):
        return None
    plan = plan_ring(block_sizes[resident:], blocks_in_ring(step_blocks, resident), capacity)
    return MemoryPlan(resident, plan) if plan.is_feasible else None


def blocks_in_ring(step_blocks: Sequence[int], resident_blocks: int) -> list[int]:
    """Returns for each step its block's index among the blocks in the ring, or ``NO_BLOCK`` if it is resident."""
    return [block - resident_blocks if block >= resident_blocks else NO_BLOCK for block in step_blocks]
