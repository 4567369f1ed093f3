"""How long a pass takes with a ring of any size, from the layers' sizes and times: a small simulation.

The reader takes a portion as soon as its place is free, the processor a layer as soon as its weights are there (paper,
asynchronous and two-stage pipelines). Pure: numbers in, seconds out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from split_infer_ros.weight_streaming.ring import RingPlan

PASSES = 4  # after the first ones, a pass is like the one before
HALVINGS = 20


@dataclass(frozen=True, slots=True)
class Machine:
    """What was measured.

    Attributes:
        steps: seconds of each step.
        rest: seconds behind the last step.
        bandwidth: of reading, bytes a second.
        latency: seconds of a read besides, the hand-over from reader to processor among them.
    """

    steps: tuple[float, ...]
    rest: float
    bandwidth: float
    latency: float = 0.0

    @property
    def compute(self) -> float:
        """Seconds of a pass that never waits."""
        return sum(self.steps) + self.rest

    def reading(self, plan: RingPlan) -> float:
        """Seconds in which a pass's weights are read, at least."""
        return sum(self.latency + portion.nbytes / self.bandwidth for portion in plan.portions)

    def bound(self, plan: RingPlan) -> float:
        """Seconds below which no pass gets: the longer of computing and reading."""
        return max(self.compute, self.reading(plan))


def predict(plan: RingPlan, machine: Machine) -> float:
    """Seconds of a pass when one follows the other, the next one's first layers being read during this one."""
    count = len(plan.portions)
    reads = [machine.latency + portion.nbytes / machine.bandwidth for portion in plan.portions]
    released: list[float] = []  # when each portion, counted over all passes, was given up
    there: list[float] = []  # when each was read
    now = before = reader = 0.0
    for turn in range(PASSES):
        before = now
        for step, seconds in enumerate(machine.steps):
            wanted = turn * count + plan.needs[step]
            while len(there) < turn * count + count:
                number = len(there)
                holder = number - plan.window[number % count] - 1  # must have been given up
                if holder >= len(released):
                    break
                reader = max(reader, released[holder] if holder >= 0 else 0.0) + reads[number % count]
                there.append(reader)
            now = max(now, there[wanted - 1] if wanted else 0.0) + seconds
            freed = turn * count + plan.frees[step]
            released.extend([now] * (freed - len(released)))
        now += machine.rest
    return now - before


def with_latency(machine: Machine, plan: RingPlan, delay: float) -> Machine:
    """The machine whose latency is such that a pass with that plan takes so long, as was measured.

    Args:
        machine: of no latency.
        plan: of a ring so small that reads are waited for.
        delay: seconds; where that is less than what no latency gives, none is found.
    """
    if predict(plan, machine) >= delay:
        return machine
    below, above = 0.0, delay / len(plan.portions)  # with which reads alone take all the time
    for _ in range(HALVINGS):
        middle = (below + above) / 2
        if predict(plan, replace(machine, latency=middle)) < delay:
            below = middle
        else:
            above = middle
    return replace(machine, latency=above)
