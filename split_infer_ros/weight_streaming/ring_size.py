"""How much memory is worth it: the ring grows until the delay stops falling (paper, Memory-delay tradeoff).

More memory hides reading behind computing. Where reading takes longer than computing there is nothing to hide behind;
then memory saves reading: the first layers stay. Pure, apart from ``delay``, which may measure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from split_infer_ros.weight_streaming.delay_model import Machine, predict
from split_infer_ros.weight_streaming.packed_file import PAGE
from split_infer_ros.weight_streaming.residency import Placement, keep_first
from split_infer_ros.weight_streaming.ring import least_capacity

GROWTH = 1.15  # from one try to the next
WITHIN = 0.01  # of a delay, by which more is none
PRUDENCE = 1.5  # times as long may a read take now and then, and is to be hidden even so

Delay = Callable[[Placement], float]


@dataclass(frozen=True, slots=True)
class RingTrial:
    """One try.

    Attributes:
        memory: bytes, of the ring and of what stays.
        delay: seconds of a pass.
        placement: what was tried.
    """

    memory: int
    delay: float
    placement: Placement


def explore(sizes: Sequence[int], uses: Sequence[int], delay: Delay, most: float, goal: float) -> list[RingTrial]:
    """The trade-off: from the smallest ring up to ``most`` bytes, or until a delay within the goal or no more to gain.

    Args:
        sizes, uses: of the blocks, as ``ring.circular`` has them.
        delay: of a placement, predicted or measured, in seconds.
        most: bytes that may be taken.
        goal: seconds; smaller delays are not looked for.

    Returns:
        Points of growing memory and falling delay: the best of those tried up to each.
    """
    found: list[RingTrial] = []
    memory = least = least_capacity(sizes, uses)
    while memory <= min(most, sum(sizes)):
        partitions = (memory // part // PAGE * PAGE for part in (1, 2, 4, 8))
        rings = {least, _best_ring(found), *partitions}
        tries = [keep_first(sizes, uses, memory, ring) for ring in sorted(rings) if least <= ring <= memory]
        points = [RingTrial(memory, delay(each), each) for each in tries if each is not None]
        best = min([*points, *found[-1:]], key=lambda point: point.delay, default=None)
        if best is not None:
            found.append(RingTrial(memory, best.delay, best.placement))
            if best.delay <= goal:
                break
        memory = max(memory + PAGE, int(memory * GROWTH) // PAGE * PAGE)
    return found


def _best_ring(found: Sequence[RingTrial]) -> int:
    return found[-1].placement.plan.capacity if found else 0


def trade_off(
    sizes: Sequence[int], uses: Sequence[int], machine: Machine, most: float, allowed: float
) -> list[RingTrial]:
    """The trade-off as predicted, for reads that all take longer than they were seen to.

    Args:
        sizes, uses: of the blocks, as ``ring.circular`` has them.
        machine: what was measured.
        most: bytes that may be taken.
        allowed: seconds over resident's delay; see ``choose``.
    """
    prudent = replace(machine, bandwidth=machine.bandwidth / PRUDENCE, latency=machine.latency * PRUDENCE)
    goal = goal_of(machine.compute, allowed)
    return explore(sizes, uses, lambda placement: predict(placement.plan, prudent), most, goal)


def choose(points: Sequence[RingTrial], resident: float, allowed: float) -> RingTrial:
    """The least memory that delays a pass by no more than is allowed: over resident's delay, or the best to be had.

    Args:
        points: not empty.
        resident: its delay, seconds.
        allowed: seconds, as ``goal_of`` has them.
    """
    best = min(point.delay for point in points)
    goal = goal_of(resident, allowed)
    if best > goal:
        goal = goal_of(best, allowed)
    return min((point for point in points if point.delay <= goal), key=lambda point: point.memory)


def goal_of(delay: float, allowed: float) -> float:
    """Seconds within which a pass is as good as one of that delay: so much more, or one hundredth."""
    return delay + max(allowed, WITHIN * delay)
