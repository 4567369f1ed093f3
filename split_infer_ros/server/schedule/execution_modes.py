"""Compares the two execution modes of a CPU: one execution on all cores, or one execution on each lane.

Cores that share every operation wait for each other some fifty times in a network. All of them also wait for memory
while a large matrix is read. Lanes do not wait for each other, and while one reads, another computes. But a single
request is done sooner on all cores. Therefore the costs of both modes are measured. Costs of lanes are measured while
all lanes are at work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from split_infer_ros.server.schedule.execution_costs import NOISE_MARGIN, ExecutionCosts
from split_infer_ros.server.schedule.request import Request


@dataclass(frozen=True)
class ExecutionModes:
    """The costs of executions in each execution mode.

    Attributes:
        whole: costs on all cores, or on the GPU.
        num_lanes: number of lanes; 0 if there is only one mode, as on a GPU and on a single core.
        lane: costs on one lane, while all lanes are at work.
    """

    whole: ExecutionCosts
    num_lanes: int = 0
    lane: ExecutionCosts = field(default_factory=lambda: ExecutionCosts({}, {}))

    def knows(self, model: str) -> bool:
        """Returns whether costs of the model are known in every execution mode."""
        return self.whole.knows(model) and (not self.num_lanes or self.lane.knows(model))

    @cached_property
    def lanes_serve_more(self) -> bool:
        """Whether all lanes together serve clearly more images a second than all cores do: single images, or stacks.

        Batches of a model are not compared, because requests are rarely merged on the cores of a CPU. A single image
        takes longer on a lane, so a gain within the noise is none.
        """
        models = self.whole.alone_s.keys() & self.lane.alone_s.keys()
        whole_image_s = sum(map(self.whole.image_s, models))
        lane_image_s = sum(map(self.lane.image_s, models))
        return (1 + NOISE_MARGIN) * lane_image_s < self.num_lanes * whole_image_s

    def all_cores_finish_sooner(self, waiting: Sequence[Request], *, more_arrive: bool = False) -> bool:
        """Returns whether these requests are done sooner on all cores, one execution at a time, than on idle lanes.

        This is usual if there are fewer requests than lanes, or if one request takes as long as all others together. If
        more requests arrive meanwhile, lanes do not become idle behind the longest request. Then only throughput
        counts.

        Args:
            waiting: at least one request.
            more_arrive: whether requests came since the last execution began.
        """
        if more_arrive and len(waiting) >= self.num_lanes:
            return not self.lanes_serve_more
        lane_ends_s = [0.0] * self.num_lanes
        for seconds in sorted((self.lane.batch_s(request.model, 1) for request in waiting), reverse=True):
            lane_ends_s[lane_ends_s.index(min(lane_ends_s))] += seconds
        return self.whole.shortest_s(Counter(request.model for request in waiting)) < max(lane_ends_s)
