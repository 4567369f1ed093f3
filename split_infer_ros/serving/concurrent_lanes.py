"""A lane on each core of a CPU, all of them at work: to measure what an execution takes then."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from split_infer_ros.serving.merge_runner import Engine, Inputs, Outputs


class ConcurrentLanes:
    """All lanes run the same at the same time.

    Args:
        lanes: engines of one core each.
    """

    graphs = None  # there are none on a CPU

    def __init__(self, lanes: Sequence[Engine]) -> None:
        self._lanes = lanes
        self._helpers = ThreadPoolExecutor(len(lanes), "side by side")

    def prepare(self, inputs: Inputs) -> None:
        """Nothing is recorded."""

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
