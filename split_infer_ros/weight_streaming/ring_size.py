"""Chooses how much memory weights get: more as long as it shortens a pass (paper 002: memory-delay tradeoff).

More memory hides reading behind computing. If reading takes longer than computing, computing cannot hide all of it.
More memory then saves reads: the first layers stay in memory. The module is pure, but its callers may measure delays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from split_infer_ros.weight_streaming.delay_model import StreamingProfile, predict_delay
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.residency import plan_resident_and_two_buffers, plan_resident_blocks
from split_infer_ros.weight_streaming.ring_plan import min_capacity

GROWTH = 1.15  # factor of memory from one trial to the next
ROUNDING = 1e-9  # relative difference that sums of the same times may have
READ_MARGIN = 1.5  # now and then, a read takes this many times as long, and must still be hidden
SHORTLIST = 3  # how many predicted trials are worth measuring
RING_DIVISORS = (1, 2, 4, 8)  # the ring takes all memory, half of it, ...


@dataclass(frozen=True, slots=True)
class AllowedDelay:
    """How much longer a pass may take than with resident weights. The larger of both values is allowed.

    Attributes:
        seconds: an absolute limit, the same for every model.
        share: a share of the time of a pass with resident weights; 0.01 is one hundredth.
    """

    seconds: float = 0.0
    share: float = 0.0

    def goal_s(self, delay_s: float) -> float:
        """Returns the longest delay that is allowed if ``delay_s`` is the reference."""
        return delay_s + max(self.seconds, self.share * delay_s, ROUNDING * delay_s)


@dataclass(frozen=True, slots=True)
class RingTrial:
    """One point of the trade-off between memory and delay.

    Attributes:
        memory_bytes: bytes for the rings and the blocks that stay in memory.
        delay_s: seconds of a pass.
        memory_plan: the plan that gives this delay.
    """

    memory_bytes: int
    delay_s: float
    memory_plan: MemoryPlan


def explore_trade_off(
    block_sizes: Sequence[int],
    step_blocks: Sequence[int],
    delay_of: Callable[[MemoryPlan], float],
    *,
    max_bytes: float,
    goal_s: float,
    is_copied: bool = False,
) -> list[RingTrial]:
    """Tries more and more memory, from the smallest ring up to ``max_bytes``, until the delay reaches the goal.

    Args:
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        delay_of: predicts or measures the seconds of a pass.
        max_bytes: the most bytes for the rings and the blocks that stay in memory.
        goal_s: the delay in seconds at which the search ends.
        is_copied: as for ``plan_memory``.

    Returns:
        Trials in the order of their memory. Each has the shortest delay that was found with at most that memory.
    """
    trials: list[RingTrial] = []
    smallest, sides = min_capacity(block_sizes, step_blocks), 2 if is_copied else 1
    memory_bytes = sides * smallest
    while memory_bytes <= min(max_bytes, sides * sum(block_sizes)):
        capacities = {memory_bytes // sides // divisor // PAGE * PAGE for divisor in RING_DIVISORS} | {smallest}
        if trials:
            capacities.add(trials[-1].memory_plan.ring.capacity)
        plans = [
            plan_resident_blocks(
                block_sizes, step_blocks, memory_bytes=memory_bytes, capacity=capacity, is_copied=is_copied
            )
            for capacity in sorted(capacities)
            if smallest <= capacity <= memory_bytes // sides
        ]
        plans.append(
            plan_resident_and_two_buffers(block_sizes, step_blocks, memory_bytes=memory_bytes, is_copied=is_copied)
        )
        candidates = [RingTrial(memory_bytes, delay_of(plan), plan) for plan in plans if plan is not None]
        best = min([*candidates, *trials[-1:]], key=lambda trial: trial.delay_s, default=None)
        if best is not None:
            trials.append(replace(best, memory_bytes=memory_bytes))
            if best.delay_s <= goal_s:
                break
        memory_bytes = max(memory_bytes + sides * PAGE, int(memory_bytes * GROWTH) // PAGE * PAGE)
    return trials


def predict_trade_off(
    block_sizes: Sequence[int],
    step_blocks: Sequence[int],
    profile: StreamingProfile,
    *,
    max_bytes: float,
    allowed: AllowedDelay,
    is_copied: bool = False,
) -> list[RingTrial]:
    """Predicts the trade-off, assuming that every read takes ``READ_MARGIN`` times as long as measured.

    Args:
        block_sizes: as for ``plan_ring``.
        step_blocks: as for ``plan_ring``.
        profile: the measured profile.
        max_bytes: the most bytes for the rings and the blocks that stay in memory.
        allowed: how much longer a pass may take than with resident weights.
        is_copied: as for ``plan_memory``.
    """
    slow_reads = replace(
        profile, bandwidth=profile.bandwidth / READ_MARGIN, read_latency_s=profile.read_latency_s * READ_MARGIN
    )
    return explore_trade_off(
        block_sizes,
        step_blocks,
        lambda memory_plan: predict_delay(memory_plan, slow_reads),
        max_bytes=max_bytes,
        goal_s=allowed.goal_s(profile.compute_s),
        is_copied=is_copied,
    )


def choose_trial(
    trials: Sequence[RingTrial], resident_s: float, allowed: AllowedDelay, *, noise_s: float = 0.0
) -> RingTrial:
    """Returns the trial with the least memory among those with an allowed delay.

    If no trial is fast enough compared with resident weights, the shortest delay of all trials is the reference.

    Args:
        trials: the trials, at least one.
        resident_s: seconds of a pass with resident weights.
        allowed: how much longer than the reference a pass may take.
        noise_s: by how many seconds equal delays may differ, if they were measured.
    """
    shortest_s = min(trial.delay_s for trial in trials)
    goal_s = allowed.goal_s(resident_s)
    if shortest_s > goal_s:
        goal_s = allowed.goal_s(shortest_s) + noise_s
    return min((trial for trial in trials if trial.delay_s <= goal_s), key=lambda trial: trial.memory_bytes)


def choose_measured(
    trials: Sequence[RingTrial],
    resident_s: float,
    allowed: AllowedDelay,
    time_passes: Callable[[RingTrial], Sequence[float]],
) -> RingTrial:
    """Measures the trials of ``shortlist``, and returns the one that is the best then.

    Args:
        trials: predicted trials, at least one.
        resident_s: as for ``choose_trial``.
        allowed: as for ``choose_trial``.
        time_passes: returns the seconds of passes with a trial's plan; nothing if weights do not come with it.
    """
    best = shortlist(trials, resident_s, allowed)
    passes_s = [time_passes(trial) for trial in best]
    measured = [replace(trial, delay_s=median(each)) for trial, each in zip(best, passes_s, strict=True) if each]
    if not measured:
        return best[0]
    noise_s = max(median(abs(second - median(each)) for second in each) for each in passes_s if each)
    return choose_trial(measured, resident_s, allowed, noise_s=noise_s)


def shortlist(
    trials: Sequence[RingTrial], resident_s: float, allowed: AllowedDelay, count: int = SHORTLIST
) -> list[RingTrial]:
    """Returns the trial of ``choose_trial``, and those with less memory and the next shortest delays.

    A prediction may err by more than these differ. So a caller that can measure them should.

    Args:
        trials: predicted trials, at least one.
        resident_s: as for ``choose_trial``.
        allowed: as for ``choose_trial``.
        count: the most trials to return. Each has a plan of its own.
    """
    best = choose_trial(trials, resident_s, allowed)
    smaller = [trial for trial in trials if trial.memory_bytes < best.memory_bytes]
    found = [best]
    for trial in sorted(smaller, key=lambda trial: (trial.delay_s, trial.memory_bytes)):
        if len(found) < count and all(trial.memory_plan != other.memory_plan for other in found):
            found.append(trial)
    return found
