"""What executes: the GPU, or on a CPU either all threads together or one lane on each core."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch

from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.num_threads import max_threads, use_one_thread
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.execution.concurrent_lanes import ConcurrentLanes
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.execution.model_streams import Backbone
from split_infer_ros.server.executor import Executor
from split_infer_ros.server.in_flight import InFlightBatch
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler
from split_infer_ros.split.stacked_model import StackedModel


class WorkerPool:
    """Executes batches with all threads on the caller's thread, or on one lane's own thread.

    Args:
        changed: guards what is shared with other threads.
        device: where.
        graph_bytes: memory that a GPU's recorded executions may take; None if nothing is recorded.
        lanes: whether each core may work by itself.

    Attributes:
        whole: the runner that has all threads, or the GPU.
        concurrent: measures lanes; None on a GPU and on a single core, which have no lanes.
        lane_scheduler: knows which executions are under way (lock held).
    """

    def __init__(
        self,
        changed: threading.Condition,
        device: torch.device,
        graph_bytes: int | None,
        lanes: bool = True,
    ) -> None:
        self.whole = MergeRunner(device, graph_bytes)
        self._executor = Executor(changed, self.whole, device)
        count = max_threads() if lanes and device.type == "cpu" and max_threads() > 1 else 0
        self._lane_runners = [MergeRunner(device, num_threads=1, num_lanes=count) for _ in range(count)]
        self.concurrent = ConcurrentLanes(self._lane_runners) if count else None
        executors = [Executor(changed, runner, device) for runner in self._lane_runners]
        self._lanes = [_lane(number, executor) for number, executor in enumerate(executors)]
        self.lane_scheduler = LaneScheduler(count, self._executor.depth)

    @property
    def num_lanes(self) -> int:
        """Number of lanes."""
        return len(self._lanes)

    def load(
        self, backbones: Mapping[str, Backbone], image_s: Mapping[str, float], engines: Mapping[str, Engine]
    ) -> None:
        """Replaces the models by exactly these, see ``MergeRunner.load``; lanes may be at work with those that stay."""
        for runner in (self.whole, *self._lane_runners):
            runner.load(backbones, image_s, engines)

    def start(self) -> None:
        """Starts, until ``stop``; may be started again."""
        self._executor.start()
        for lane in self._lanes:
            lane.start()

    def stop(self) -> None:
        """Hands over all executions that were begun, then ends."""
        for lane in self._lanes:
            lane.stop()
        self._executor.stop()

    def execute(
        self,
        batches: Sequence[InFlightBatch],
        lane: int | None,
        over: Callable[[], None],
        stack: StackedModel | None = None,
    ) -> None:
        """Has batches executed as one; on a lane or a GPU this returns before it is done, see ``Executor.execute``."""
        if lane is None:
            self._executor.execute(batches, over, stack)
        else:
            self._lanes[lane].put((batches, over, stack))

    def close(self) -> None:
        """Frees the runners, once stopped."""
        self.whole.close()
        if self.concurrent is not None:
            self.concurrent.close()


_Work = tuple[Sequence[InFlightBatch], Callable[[], None], StackedModel | None]


def _lane(number: int, executor: Executor) -> WorkerThread[_Work]:
    return WorkerThread(f"lane {number}", lambda work: executor.execute(*work), use_one_thread)
