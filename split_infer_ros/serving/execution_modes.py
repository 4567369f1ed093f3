"""The two ways to use a CPU's cores, all of them at one execution or a lane on each, and which one serves better.

Cores that work on every operation together wait for each other some fifty times a network, and all of them for memory
while a large matrix is read. Lanes wait for nothing, and while one reads, another computes. But a single request is
done sooner with all cores. So both are measured, lanes with all of them at work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from split_infer_ros.serving.execution_costs import ExecutionCosts
from split_infer_ros.serving.request import Request


@dataclass(frozen=True)
class ExecutionModes:
    """What executions take in each way.

    Attributes:
        whole: costs with all cores, or on the GPU.
        lanes: how many, one a core; 0 where there is one way alone: on a GPU, and on a single core.
        lane: costs on a lane, while all of them are at work.
    """

    whole: ExecutionCosts
    lanes: int = 0
    lane: ExecutionCosts = field(default_factory=lambda: ExecutionCosts({}, {}))

    @cached_property
    def lanes_serve_more(self) -> bool:
        """Whether lanes serve an image of each model sooner than all cores together, each in its best batches."""
        models = self.whole.alone_s.keys() & self.lane.alone_s.keys()
        return sum(map(self.lane.best_image_s, models)) < self.lanes * sum(map(self.whole.best_image_s, models))

    def sooner_together(self, waiting: Sequence[Request], more_come: bool = False) -> bool:
        """Whether all cores at one execution after the other are done with these requests sooner than idle lanes are.

        So it is where there are fewer than lanes, or one that takes as long as all others together. But where more
        come, lanes do not stay idle behind the longest: then what counts is which way serves more.

        Args:
            waiting: at least one.
            more_come: some came since the last execution began.
        """
        if more_come and len(waiting) >= self.lanes:
            return not self.lanes_serve_more
        ends_s = [0.0] * self.lanes
        for seconds in sorted((self.lane.batch_s(request.model, 1) for request in waiting), reverse=True):
            ends_s[ends_s.index(min(ends_s))] += seconds
        counts = Counter(request.model for request in waiting)
        return sum(self.whole.batch_s(model, count) for model, count in counts.items()) < max(ends_s)
