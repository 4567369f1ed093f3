"""Where weights are while a model runs: the pipelines of paper 002, and how much memory each of them takes."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE, round_up_to_pages
from split_infer_ros.weight_streaming.ring_plan import (
    CHUNK_BYTES,
    NO_BLOCK,
    RingPlan,
    min_capacity,
    plan_double_buffer,
    plan_ring,
    runs_block_by_block,
)

MB = 1e6


class Residency(enum.Enum):
    """Where a partition's weights are while it runs, as the parameter ``weights_residency`` names it.

    - ``RESIDENT``: all weights stay in memory.
    - ``SYNCHRONOUS``: weights pass through two buffers, in lockstep with the layers. A GPU has two buffers of its own.
    - ``ASYNCHRONOUS``: weights pass through a ring buffer as large as the budget allows. A GPU has a ring of its own.
    - ``TWO_STAGE``: weights are read into the smallest ring buffer. A GPU reads them there, in the host's memory.
    - ``AUTO``: measurements decide the size of the ring and which layers stay in memory.
    """

    RESIDENT = "resident"
    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"
    TWO_STAGE = "two_stage"
    AUTO = "auto"


def plan_memory(
    residency: Residency,
    block_sizes: Sequence[int],
    step_blocks: Sequence[int],
    *,
    budget_bytes: float = math.inf,
    kept_bytes: int = 0,
    is_copied: bool = False,
) -> MemoryPlan:
    """Plans the memory of a pipeline: its rings or buffers. All blocks pass through them.

    Args:
        residency: ``SYNCHRONOUS`` takes two buffers, each of the size of the largest block. ``ASYNCHRONOUS`` takes a
            ring of the whole budget, but no more than all blocks need. Without a budget it takes the smallest ring.
            ``TWO_STAGE`` takes the smallest ring.
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        budget_bytes: the most bytes that weights may take.
        kept_bytes: bytes of further weights, which always stay in memory. They count against the budget.
        is_copied: whether whole blocks are read to the host and then copied to the device. Host and device then have
            memory of the same size for blocks.

    Raises:
        ConfigurationError: the budget is too small; or ``SYNCHRONOUS`` is wanted, and the model needs several blocks at
            once.
    """
    smallest = min_capacity(block_sizes, step_blocks)
    sides = 2 if is_copied else 1
    chunk_bytes = max((*block_sizes, PAGE)) if is_copied else CHUNK_BYTES
    if residency is Residency.SYNCHRONOUS:
        if not runs_block_by_block(step_blocks):
            raise ConfigurationError(
                "weights_residency synchronous runs one layer while it fetches the next, and this model needs several "
                "layers at once: take asynchronous or two_stage."
            )
        ring = plan_double_buffer(block_sizes, step_blocks)
    elif residency is Residency.ASYNCHRONOUS and not math.isinf(budget_bytes):
        in_budget = int((budget_bytes - kept_bytes) / sides) // PAGE * PAGE
        capacity = min(max(in_budget, smallest), sum(map(round_up_to_pages, block_sizes)))
        ring = _plan_asynchronous(block_sizes, step_blocks, capacity, chunk_bytes)
    else:
        ring = plan_ring(block_sizes, step_blocks, smallest, chunk_bytes=chunk_bytes)
    memory_plan = MemoryPlan(0, ring)
    if is_copied:
        memory_plan = with_staging(memory_plan, block_sizes, is_lockstep=residency is Residency.SYNCHRONOUS)
    taken = memory_plan.ring_bytes + kept_bytes
    if taken > budget_bytes:
        needed_mb = math.ceil(10 * taken / MB) / 10
        raise ConfigurationError(
            f"weights_residency {residency.value} needs a weights_budget_mb of {needed_mb} for this model, "
            f"not {budget_bytes / MB:g}."
        )
    return memory_plan


def with_staging(memory_plan: MemoryPlan, block_sizes: Sequence[int], *, is_lockstep: bool = False) -> MemoryPlan:
    """Adds memory on the host to a plan: blocks are read there, and copied from there to the plan's ring.

    Args:
        memory_plan: the plan. Each chunk of its ring is a whole block.
        block_sizes: bytes of each block in the ring.
        is_lockstep: whether the host has two buffers in turns instead of a ring of the same size.
    """
    steps = range(len(block_sizes))  # each copy is a step
    if is_lockstep:
        staging = plan_double_buffer(block_sizes, steps)
    else:
        staging = plan_ring(block_sizes, steps, memory_plan.ring.capacity)
    return replace(memory_plan, staging=staging, is_lockstep=is_lockstep)


def _plan_asynchronous(
    block_sizes: Sequence[int], step_blocks: Sequence[int], capacity: int, chunk_bytes: int
) -> RingPlan:
    """Returns a ring, or two buffers in turns if large blocks leave a ring no room to read ahead.

    It compares the predicted delays of both, and assumes that using a byte takes as long as reading it.
    """
    plans = [
        plan_ring(block_sizes, step_blocks, capacity, chunk_bytes=chunk_bytes),
        plan_double_buffer(block_sizes, step_blocks, chunk_bytes=chunk_bytes),
    ]
    fitting = [plan for plan in plans if plan.is_feasible and plan.capacity <= capacity]
    use_counts = Counter(step_blocks)
    step_s = tuple(block_sizes[block] / use_counts[block] if block != NO_BLOCK else 0.0 for block in step_blocks)
    balanced = StreamingProfile(step_s=step_s, tail_s=0.0, bandwidth=1.0)
    return min(fitting or plans[:1], key=lambda plan: predict_delay(MemoryPlan(0, plan), balanced))


def plan_resident_blocks(
    block_sizes: Sequence[int], step_blocks: Sequence[int], *, memory_bytes: int, capacity: int, is_copied: bool = False
) -> MemoryPlan | None:
    """Keeps as many of the first blocks in memory as fit beside the rings. Plans rings for the other blocks.

    Args:
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        memory_bytes: bytes for the rings and the resident blocks together.
        capacity: bytes of one ring.
        is_copied: as for ``plan_memory``.

    Returns:
        The plan; None if all blocks fit into memory, or the ring is too small.
    """
    ring_bytes = (2 if is_copied else 1) * capacity
    resident = sum(total <= memory_bytes - ring_bytes for total in accumulate(block_sizes))
    if resident == len(block_sizes):
        return None
    in_ring = block_sizes[resident:]
    if capacity < max(in_ring):
        return None
    chunk_bytes = max(in_ring) if is_copied else CHUNK_BYTES
    plan = plan_ring(in_ring, blocks_in_ring(step_blocks, resident), capacity, chunk_bytes=chunk_bytes)
    if not plan.is_feasible:
        return None
    memory_plan = MemoryPlan(resident, plan)
    return with_staging(memory_plan, in_ring) if is_copied else memory_plan


def plan_resident_and_two_buffers(
    block_sizes: Sequence[int], step_blocks: Sequence[int], *, memory_bytes: int, is_copied: bool = False
) -> MemoryPlan | None:
    """Keeps as many of the first blocks in memory as fit beside two buffers, through which the others pass in turns.

    Args:
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        memory_bytes: bytes for the buffers and the resident blocks together.
        is_copied: as for ``plan_memory``.

    Returns:
        The plan; None if all blocks fit into memory, the buffers do not, or the model needs several blocks at once.
    """
    if not runs_block_by_block(step_blocks):
        return None
    buffers_bytes = (4 if is_copied else 2) * round_up_to_pages(max(block_sizes))
    if buffers_bytes > memory_bytes:
        return None
    resident = sum(total <= memory_bytes - buffers_bytes for total in accumulate(block_sizes))
    if resident == len(block_sizes):
        return None
    in_buffers = block_sizes[resident:]
    steps = blocks_in_ring(step_blocks, resident)
    plan = plan_double_buffer(in_buffers, steps, chunk_bytes=None if is_copied else CHUNK_BYTES)
    memory_plan = MemoryPlan(resident, plan)
    return with_staging(memory_plan, in_buffers, is_lockstep=True) if is_copied else memory_plan


def blocks_in_ring(step_blocks: Sequence[int], resident_blocks: int) -> list[int]:
    """Returns the index of each step's block among the blocks in the ring; ``NO_BLOCK`` if the block is resident."""
    return [block - resident_blocks if block >= resident_blocks else NO_BLOCK for block in step_blocks]
