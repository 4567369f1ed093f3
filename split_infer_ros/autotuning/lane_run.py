"""Calls a network as a node does while frames come fast: on all lanes at once, with one batch on each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from split_infer_ros.runtime.inference import inference_mode

WARM_UP = 3  # calls before a network is timed; convolutions are packed at the second one


class LaneRun:
    """Runs a batch on each lane at the same time, and waits for all of them.

    Args:
        run: runs a batch on the calling thread.
        num_lanes: how many threads run a batch each. With one lane, the calling thread runs it.
        set_up: sets the number of threads that ``run`` uses on a new thread.
    """

    def __init__(self, run: Callable[[], object], num_lanes: int, set_up: Callable[[], None]) -> None:
        self._run, self._num_lanes = run, num_lanes
        self._lanes = ThreadPoolExecutor(num_lanes, initializer=set_up) if num_lanes > 1 else None
        if self._lanes is not None:
            self()  # usually starts all threads

    def __call__(self) -> None:
        """Runs a batch on each lane."""
        if self._lanes is None:
            self._run()
            return
        batches = [self._lanes.submit(self._on_lane) for _ in range(self._num_lanes)]
        wait(batches)  # waits for all of them, even if one fails
        for batch in batches:
            batch.result()

    def per_batch(self, seconds: Sequence[float]) -> list[float]:
        """Returns the seconds per batch, given the seconds of each call."""
        return [each / self._num_lanes for each in seconds]

    def _on_lane(self) -> None:
        with inference_mode():  # each thread has its own setting
            self._run()
