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
    """Pre-processes and computes executions, and hands their batches over. Batches of one source keep their order.

    On a CPU, the thread that calls ``run`` does all of this, because several threads would only share the cores. On a
    lane, the lane's thread does it. A GPU gets the next execution while it computes the present one. There, a second
    thread launches executions, and a third waits until each is done.

    Args:
        changed: guards what is shared with other threads; notified once an execution is over.
        device: the device on which executions run.
        graph_bytes: memory that recorded executions of several models may take; None if nothing is recorded.
        num_lanes: number of lanes on a CPU; 0 or 1: none.

    Attributes:
        whole: the runner that uses all threads, or the GPU.
        concurrent: measures lanes; None without lanes.
        lanes: knows which executions are under way (lock held).
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
        """Replaces the models by exactly these; see ``MergeRunner.load``. Lanes may still run models that stay."""
        self.whole.load(loaded.backbones, loaded.image_s, loaded.engines, loaded.num_threads)
        for runner in self.lane_runners:
            runner.load(loaded.backbones, loaded.image_s, loaded.engines)

    def start(self) -> None:
        """Starts the threads. A stopped executor can be started again."""
        for thread in self._threads():
            thread.start()

    def stop(self) -> None:
        """Hands over all executions that were begun, then ends the threads."""
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
        """Notes that an execution begins (lock held). Call ``run`` next."""
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
        """Has an execution pre-processed, computed and handed over. On a GPU or a lane, returns before that is done."""
        lane = execution.scheduled.lane
        if lane is None:
            self._load(execution)
        else:
            self._lane_threads[lane].put(execution)

    def _processor_s(self) -> float | None:
        """Returns the processor time of the process, which only lanes need: Linux adds it up over all threads."""
        return time.process_time() if self.lane_runners else None

    def _threads(self) -> list[WorkerThread[Execution]]:
        behind = [thread for thread in (self._launch, self._handover) if thread is not None]
        return [*self._lane_threads, *behind]

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
        """Launches an execution on the device; returns the fence after which the features are in the slots."""
        runner, left = self._runner_of(execution), execution.left
        if len(execution.batches) == 1 and runner.graphs is None and not left[0].maps:
            return left[0].run(runner.stream, self._copies)
        batches = {batch.owner.key: batch for batch in left}
        images = {key: batch.images for key, batch in batches.items()}
        fences = [batch.ready for batch in left]
        fences += [self._mapped.pop(key) for key in batches if key in self._mapped]
        launched = runner.launch(
            images,
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
        """Waits until an execution is done, and hands its batches over."""
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
