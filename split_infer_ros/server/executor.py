"""Runs executions on all cores, on a lane or on a GPU, until the features are in their slots."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.num_threads import max_threads, use_all_threads, use_one_thread
from split_infer_ros.runtime.priority import BACKBONE, give_way
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.costs.cost_measurer import ExecutionRunner
from split_infer_ros.server.execution.concurrent_lanes import ConcurrentLanes
from split_infer_ros.server.execution.execution import Execution
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.loaded_models import LoadedModels
from split_infer_ros.server.schedule.lane_scheduler import LaneScheduler, ScheduledExecution

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel

GPU_DEPTH = 3  # one execution is launched, one is computed, one is handed over


class Executor:
    """Pre-processes and computes executions. Then gives each batch to its model instance, which sends it to a head.

    Batches of one source keep their order. The work is done on these threads:

    - On all cores of a CPU: the thread that calls ``run``. Several threads would only share the cores.
    - On a lane: the lane's thread.
    - On a GPU: the thread that calls ``run`` pre-processes, a second thread launches executions, and a third thread
      waits until each is done. So the GPU gets an execution while it computes the one before.

    Args:
        changed: the condition that guards state shared with other threads. It is notified when an execution is over.
        device: the device on which executions run.
        graph_bytes: the most bytes that recorded executions of several models may take; None if nothing is recorded.
        num_lanes: number of lanes on a CPU. 0 and 1 mean that there are none.

    Attributes:
        whole: the runner that uses all cores, or the GPU.
        concurrent: measures lanes; None without lanes.
        lanes: knows which executions run now. Use it only with the lock held.
    """

    def __init__(
        self, changed: threading.Condition, device: Device, *, graph_bytes: int | None = None, num_lanes: int = 0
    ) -> None:
        self._changed = changed
        self.whole = MergeRunner(device, graph_bytes)
        behind = self.whole.is_asynchronous
        count = num_lanes if num_lanes > 1 and device.type == "cpu" else 0
        lane_threads = max(1, max_threads() // max(1, count))
        self.lane_runners = [MergeRunner(device, num_threads=lane_threads, num_lanes=count) for _ in range(count)]
        self.concurrent = ConcurrentLanes(self.lane_runners) if count else None
        self.lanes = LaneScheduler(count, GPU_DEPTH if behind else 1)
        self._lane_threads = [WorkerThread(f"lane {number}", self._load, _set_up_lane) for number in range(count)]
        self._launch = WorkerThread("launch", self._compute, use_one_thread) if behind else None
        self._handover = WorkerThread("handover", self._finish, use_one_thread) if behind else None
        self._copies = Stream(device)
        self._mapped: dict[str, Fence] = {}  # by model: the fence until which its latest features are read
        self._under_way: list[Execution] = []
        self._last_end = 0.0

    @property
    def runners(self) -> dict[int, ExecutionRunner]:
        """The runner of each execution mode; see ``CostTable``."""
        lanes: dict[int, ExecutionRunner] = {} if self.concurrent is None else {self.num_lanes: self.concurrent}
        return {0: self.whole, **lanes}

    @property
    def is_asynchronous(self) -> bool:
        """Whether executions may still run on the device when ``run`` returns."""
        return self._launch is not None

    @property
    def num_lanes(self) -> int:
        """Number of lanes; 0 if there are none."""
        return len(self.lane_runners)

    def load(self, loaded: LoadedModels) -> None:
        """Replaces the loaded models by exactly these; see ``MergeRunner.load``. Lanes may still run models that stay.

        Args:
            loaded: the models, with each model's number of threads for executions on all cores.
        """
        self.whole.load(loaded.backbones, loaded.image_s, loaded.engines, loaded.num_threads)
        for runner in self.lane_runners:
            runner.load(loaded.backbones, loaded.image_s, loaded.engines)

    def start(self) -> None:
        """Starts the threads. A stopped executor can be started again."""
        for thread in self._threads():
            thread.start()

    def stop(self) -> None:
        """Waits until all executions that ``run`` was called with are over, then ends the threads."""
        for thread in self._threads():
            thread.stop()

    def close(self) -> None:
        """Frees the runners. Call it after ``stop``."""
        self.whole.close()
        if self.concurrent is not None:
            self.concurrent.close()

    def set_up_thread(self) -> None:
        """Prepares the calling thread to call ``run``."""
        if self._launch is not None:
            use_one_thread()
        else:
            use_all_threads()
            give_way(BACKBONE)

    def begin(self, scheduled: ScheduledExecution, batches: Sequence[Batch], stack: StackedModel | None) -> Execution:
        """Notes that an execution begins, and returns it (lock held). Call ``run`` next.

        Args:
            scheduled: the decision of the schedule.
            batches: the batches of the execution.
            stack: computes all batches as one network; None if each model computes its own batch.
        """
        self.lanes.begin(scheduled, time.monotonic(), self._processor_s())
        before: list[Execution] = []
        if scheduled.lane is not None:
            for batch in batches:
                batch.num_lanes = self.num_lanes
            sources = scheduled.sources
            before = [each for each in self._under_way if not sources.isdisjoint(each.scheduled.sources)]
        execution = Execution(batches, scheduled, stack, before)
        self._under_way.append(execution)
        return execution

    def run(self, execution: Execution) -> None:
        """Pre-processes and computes an execution, and gives its batches to their model instances.

        On a GPU or a lane, the call returns before that is done.
        """
        lane = execution.scheduled.lane
        if lane is None:
            self._load(execution)
        else:
            self._lane_threads[lane].put(execution)

    def _processor_s(self) -> float | None:
        """Returns the processor time of the process, which only lanes need: Linux adds it up over all threads."""
        return time.process_time() if self.lane_runners else None

    def _threads(self) -> list[WorkerThread[Execution]]:
        return [*self._lane_threads, *(each for each in (self._launch, self._handover) if each is not None)]

    def _runner_of(self, execution: Execution) -> MergeRunner:
        lane = execution.scheduled.lane
        return self.whole if lane is None else self.lane_runners[lane]

    def _load(self, execution: Execution) -> None:
        runner = self._runner_of(execution)
        with inference_mode():
            for batch in execution.batches:
                try:
                    if self._launch is None:
                        runner.set_threads(batch.owner.key)
                    batch.load()
                except Exception as error:  # one batch must not stop the others
                    execution.failed[batch] = error
        if self._launch is not None:
            self._launch.put(execution)
        else:
            self._compute(execution)

    def _compute(self, execution: Execution) -> None:
        execution.began = time.monotonic()
        try:
            if execution.left:
                execution.done = self.launch(execution)
        except Exception as error:
            execution.failed |= dict.fromkeys(execution.left, error)
        if execution.before:
            with self._changed:
                self._changed.wait_for(lambda: all(each.is_over for each in execution.before))
            execution.before = ()  # otherwise each execution would keep all earlier ones in memory
        if self._handover is not None:
            self._handover.put(execution)
        else:
            self._finish(execution)

    def launch(self, execution: Execution) -> Fence:
        """Launches an execution on the device. Returns a fence: once it is reached, the features are in the slots."""
        runner, left = self._runner_of(execution), execution.left
        if len(execution.batches) == 1 and runner.graphs is None and not left[0].maps:
            return left[0].run(runner.stream, self._copies)
        batches = {batch.owner.key: batch for batch in left}
        fences = [batch.ready for batch in left]
        fences += [self._mapped.pop(key) for key in batches if key in self._mapped]
        launched = runner.launch(
            {key: batch.images for key, batch in batches.items()},
            lambda key, features: batches[key].write(features),
            fences,
            lambda key, backbone, given: batches[key].compute(backbone, given),
            execution.stack,
        )
        execution.failed |= {batches.pop(key): error for key, error in launched.failed.items()}
        done = launched.done
        self._copies.wait_for(done)
        for key, batch in batches.items():
            fetched = batch.fetch(self._copies)
            if fetched is not None:
                done = fetched
                if batch.maps:
                    self._mapped[key] = fetched
        return done

    def _finish(self, execution: Execution) -> None:
        """Waits until an execution is done, and gives its batches to their model instances."""
        failure: Exception | None = None
        try:
            execution.done.wait()
        except Exception as error:
            failure = error
        # A GPU begins with an execution when it is done with the one before.
        start, end = max(execution.began, self._last_end), time.monotonic()
        if self._handover is not None:
            self._last_end = end
        try:
            for batch in execution.batches:
                batch.timeline.backbone_start, batch.timeline.backbone_end = start, end
                why = execution.failed.get(batch, failure)
                try:
                    if why is not None:
                        raise why
                    batch.owner.hand_over(batch)
                except Exception as reason:  # one batch must not stop the others
                    batch.owner.fail(batch, reason)
        finally:  # an execution that never ends would keep all later ones from beginning
            with self._changed:
                execution.is_over = True
                self._under_way.remove(execution)
                self.lanes.end(execution.scheduled, time.monotonic(), self._processor_s())
                self._changed.notify_all()


def _set_up_lane() -> None:
    use_one_thread()
    give_way(BACKBONE)
