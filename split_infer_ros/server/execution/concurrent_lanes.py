"""Runs all lanes of a CPU at the same time, to measure what an execution costs on a lane."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from split_infer_ros.server.execution.merge_runner import Inputs, MergeRunner, Outputs


class ConcurrentLanes:
    """Runs one execution on all lanes at the same time, each lane with the same models and images.

    Args:
        lanes: a runner for each lane, with one thread each. ``close`` closes these runners.
    """

    graphs = None  # a CPU records no graphs

    def __init__(self, lanes: Sequence[MergeRunner]) -> None:
        self._lanes = lanes
        self._threads = ThreadPoolExecutor(len(lanes), "concurrent lane")

    def prepare(self, inputs: Inputs) -> None:
        """Does nothing, because a CPU records no graphs."""

    def run(self, inputs: Inputs) -> Outputs:
        """Runs the execution on all lanes, and waits until all are done. Returns the features that one lane computed.

        Raises:
            Exception: an error of a model, raised once all lanes are done.
        """
        runs = [self._threads.submit(lane.run, inputs) for lane in self._lanes]
        wait(runs)
        outputs = [run.result() for run in runs]
        return outputs[0]

    def close(self) -> None:
        """Ends the threads, and closes the lanes."""
        self._threads.shutdown()
        for lane in self._lanes:
            lane.close()
