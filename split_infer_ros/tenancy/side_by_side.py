"""A lane on each core of a CPU: executions side by side, each on one core.

Cores that work on every operation together wait for each other some fifty times a network, and all of them for memory
while a large matrix is read. Lanes wait for nothing, and while one reads, another computes. Which way serves more is
measured, with all lanes at work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from split_infer_ros.tenancy.costs import Costs
from split_infer_ros.tenancy.engine import Engine, Inputs, Outputs
from split_infer_ros.tenancy.request import Request


class SideBySide:
    """All lanes run the same at the same time: so it is measured what an execution takes while they are all at work.

    Args:
        lanes: engines of one core each.
    """

    def __init__(self, lanes: Sequence[Engine]) -> None:
        self._lanes = lanes
        self._helpers = ThreadPoolExecutor(len(lanes), "side by side")

    def run(self, inputs: Inputs) -> Outputs:
        """To the end of all; what each gives is the same.

        Raises:
            Exception: of a model that failed, once the others are done.
        """
        runs = [self._helpers.submit(lane.run, inputs) for lane in self._lanes]
        wait(runs)
        outputs, *_ = [run.result() for run in runs]
        return outputs

    def close(self) -> None:
        """End the threads, and the lanes."""
        self._helpers.shutdown()
        for lane in self._lanes:
            lane.close()


def sooner_together(waiting: Sequence[Request], lane: Costs, whole: Costs, lanes: int) -> bool:
    """Whether all cores at one execution after the other are done with these requests sooner than idle lanes are.

    So it is where there are fewer than lanes, or one that takes as long as all others together.

    Args:
        waiting: at least one.
        lane: costs on a lane, while all are at work.
        whole: costs on all cores.
        lanes: how many, one a core.
    """
    ends_s = [0.0] * lanes
    for seconds in sorted((lane.batch_s(request.model, 1) for request in waiting), reverse=True):
        ends_s[ends_s.index(min(ends_s))] += seconds
    counts = Counter(request.model for request in waiting)
    return sum(whole.batch_s(model, count) for model, count in counts.items()) < max(ends_s)


def serve_more(lane: Costs, whole: Costs, lanes: int) -> bool:
    """Whether so many lanes serve an image of each model sooner than all cores together, each in its best batches.

    Args:
        lane: costs on a lane, while all are at work.
        whole: costs on all cores.
        lanes: how many, one a core.
    """
    return sum(map(lane.best_image_s, lane.alone_s)) < lanes * sum(map(whole.best_image_s, whole.alone_s))
