"""Who executes: all cores together (or the GPU), and on a CPU of several cores a lane on each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

import torch

from split_infer_ros.runtime.num_threads import all_cores, use_one_core
from split_infer_ros.runtime.worker_thread import Stage
from split_infer_ros.serving.concurrent_lanes import ConcurrentLanes
from split_infer_ros.serving.executor import Executor
from split_infer_ros.serving.in_flight import InFlightBatch
from split_infer_ros.serving.lane_scheduler import LaneScheduler
from split_infer_ros.serving.merge_runner import MergeRunner
from split_infer_ros.serving.model_streams import Backbone


class WorkerPool:
    """Executes with all cores on the thread of whoever calls, and on each lane on a thread of that lane's own.

    Args:
        changed: guards what is shared with other threads.
        device: where.
        graph_bytes: memory that a GPU's recorded executions may take; None: nothing is recorded.
        on_error: the model's name and an exception that cost frames.
        lanes: whether cores may work each by itself.

    Attributes:
        whole: the engine that has all cores, or the GPU.
        beside: to measure lanes; None where there are none: on a GPU, and on a single core.
        floor: who is at work (lock held).
    """

    def __init__(
        self,
        changed: threading.Condition,
        device: torch.device,
        graph_bytes: int | None,
        on_error: Callable[[str, Exception], None],
        lanes: bool = True,
    ) -> None:
        self.whole = MergeRunner(device, graph_bytes)
        self._executor = Executor(changed, self.whole, device, on_error)
        count = all_cores() if lanes and device.type == "cpu" and all_cores() > 1 else 0
        self._engines = [MergeRunner(device, num_threads=1) for _ in range(count)]
        self.beside = ConcurrentLanes(self._engines) if count else None
        executors = [Executor(changed, engine, device, on_error) for engine in self._engines]
        self._lanes = [_lane(number, executor) for number, executor in enumerate(executors)]
        self.lane_scheduler = LaneScheduler(count, self._executor.depth)

    @property
    def lanes(self) -> int:
        """How many there are."""
        return len(self._lanes)

    def load(self, backbones: Mapping[str, Backbone], weights_s: Mapping[str, float]) -> None:
        """Exactly these models from now on, as ``MergeRunner.load`` has it; lanes may go on with those that stay."""
        for engine in (self.whole, *self._engines):
            engine.load(backbones, weights_s)

    def start(self) -> None:
        """Before executions, until stop; may be started again."""
        self._executor.start()
        for lane in self._lanes:
            lane.start()

    def stop(self) -> None:
        """Once all that was begun is handed over."""
        for lane in self._lanes:
            lane.stop()
        self._executor.stop()

    def execute(self, flights: Sequence[InFlightBatch], lane: int | None, over: Callable[[], None]) -> None:
        """Have batches executed as one; on a lane or a GPU this returns before it is done, see ``Executor.execute``."""
        if lane is None:
            self._executor.execute(flights, over)
        else:
            self._lanes[lane].put((flights, over))

    def close(self) -> None:
        """End the engines, once stopped."""
        self.whole.close()
        if self.beside is not None:
            self.beside.close()


_Work = tuple[Sequence[InFlightBatch], Callable[[], None]]


def _lane(number: int, executor: Executor) -> Stage[_Work]:
    return Stage(f"lane {number}", lambda work: executor.execute(*work), use_one_core)
