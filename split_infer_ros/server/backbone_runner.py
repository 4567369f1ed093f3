"""From a closed batch to its features in the slot."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.execution_config import Compiler
from split_infer_ros.runtime.num_threads import max_threads, use_one_thread
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.handover import Execution, Handover
from split_infer_ros.server.in_flight import InFlightBatch
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.schedule.lane_choice import NUM_LANES, LaneChoice
from split_infer_ros.split.model import SplitModel

GPU_DEPTH = 3  # one batch is launched, one is computed, one is handed over
LANES_LIMIT = 1.1  # times the time on all cores: lanes usually need less, but a machine that starts up is busy
TRIALS = 3  # of lanes and of all cores
TRIALS_S = 1.0  # for those of all cores; where a batch takes longer than a third of this, there are fewer
MAX_TRIAL_S = 1.5  # if a warm-up takes longer, lanes are not tried: that would delay the start too much


def count_lanes(model: SplitModel, num_threads: int) -> int:
    """Returns on how many lanes a model's backbone can run; 1 if a batch must have all cores, or the GPU.

    torch has a team of threads for each thread that computes with several. More of them than cores hinder each other,
    so torch has lanes only where each is one core. What torch.compile made is not run by two threads at once.

    Args:
        model: on its device.
        num_threads: of the backbone's operations; 0: all. Where it has not all of them, others count on the rest.
    """
    config = model.execution_config
    has_all_cores = model.device.type == "cpu" and num_threads in (0, max_threads())
    lane_threads = max_threads() // NUM_LANES
    is_possible = lane_threads == 1 if config.engine is Engine.TORCH else lane_threads >= 1
    return NUM_LANES if has_all_cores and is_possible and config.compiler is Compiler.NONE else 1


@dataclass(slots=True, eq=False)
class _Run:
    """A batch under way: when it began, its lane, and the batch before it while that is not handed over."""

    batch: InFlightBatch
    began: float
    lane: int | None
    before: _Run | None
    is_over: bool = False


class BackboneRunner:
    """Pre-processes and computes batches, and hands them over in their order.

    On a CPU the thread that calls ``run`` does all of it, as the stages would only share the cores. While batches come
    fast, each lane's thread does it for a batch of its own; see ``LaneChoice``. A GPU is given the next batch while it
    computes this one: a second thread launches, and a third waits for each batch to be done.

    Args:
        device: where the backbone runs.
        changed: guards what is shared with other threads; notified once a batch was handed over or lost.
        num_threads: of the backbone's operations on a CPU; 0: all.
        engine: what executes the backbone.
        num_lanes: of a CPU; used unless batches are then served clearly later, which ``start`` tries.

    Attributes:
        set_up: to be called on the thread that calls ``run``.
    """

    def __init__(
        self,
        device: torch.device,
        changed: threading.Condition,
        *,
        num_threads: int = 0,
        engine: Engine = Engine.TORCH,
        num_lanes: int = 1,
    ) -> None:
        self._stream, self._copies = Stream(device), Stream(device)
        self._changed = changed
        behind = self._stream.is_asynchronous
        self._choice = LaneChoice(depth=GPU_DEPTH if behind else 1)
        self._last: _Run | None = None
        self.set_up: Callable[[], None] = use_one_thread if behind else partial(engine.use_threads, num_threads)
        self._launch = WorkerThread("backbone", self._compute, use_one_thread) if behind else None
        self._handover = Handover(behind)
        lane_threads = max(1, (num_threads or max_threads()) // num_lanes)
        self._set_up_lane = partial(engine.use_threads, lane_threads, num_lanes)
        self._lanes = [
            WorkerThread(f"backbone {lane}", self._load, self._set_up_lane)
            for lane in range(num_lanes if num_lanes > 1 else 0)
        ]

    def start(self, plan: Plan) -> None:
        """Warms up, then starts, until ``stop``; may be started again."""
        # With as many threads as later: what is made for a number of them would else be made anew while frames flow.
        self._warm_up(plan, 1, self.set_up)
        if self._lanes and plan.may_use_lanes:
            self._choice.num_lanes = len(self._lanes) if self._lanes_serve_more(plan) else 1
        self._handover.start()
        for thread in self._threads():
            thread.start()

    def warm_up(self, plan: Plan) -> None:
        """Runs blank batches by another plan, if an engine other than torch would compile it with the first batch.

        They run on new threads, while batches run by the plan in force. With torch they would only choose kernels, and
        a second team of its threads slows the first. What torch.compile made is not run by two threads at once.
        """
        if not isinstance(plan.backbone, EnginePart):
            return
        self._warm_up(plan, 1, self.set_up)
        if self._choice.num_lanes > 1 and plan.may_use_lanes:
            self._warm_up(plan, self._choice.num_lanes, self._set_up_lane)

    def has_room(self, plan: Plan) -> bool:
        """Returns whether ``run`` may be called with a batch of that plan (lock held)."""
        return self._choice.has_room(plan.may_use_lanes)

    def run(self, batch: InFlightBatch) -> None:
        """Has a batch pre-processed, computed and handed over; on a GPU and on a lane returns before that is done."""
        with self._changed:
            now = time.monotonic()
            before = None if self._last is None or self._last.is_over else self._last
            run = self._last = _Run(batch, now, self._choice.begin(now, batch.plan.may_use_lanes), before)
        if run.lane is not None:
            self._lanes[run.lane].put(run)
        else:
            self._load(run)

    def stop(self) -> None:
        """Finishes all that came in, then ends."""
        for thread in self._threads():
            thread.stop()
        self._handover.stop()

    def _threads(self) -> list[WorkerThread[_Run]]:
        return self._lanes if self._launch is None else [self._launch]

    def _lanes_serve_more(self, plan: Plan) -> bool:
        """Tries lanes, all of them at work, against all cores, in turns. The fastest of each counts."""
        took_s = self._warm_up(plan, 1, self.set_up)
        if took_s > MAX_TRIAL_S:
            return False
        num_lanes = len(self._lanes)
        self._warm_up(plan, num_lanes, self._set_up_lane)
        trials = [
            (self._warm_up(plan, 1, self.set_up), self._warm_up(plan, num_lanes, self._set_up_lane))
            for _ in range(max(1, min(TRIALS, int(TRIALS_S / took_s))))
        ]
        whole_s, lanes_s = min(whole_s for whole_s, _ in trials), min(lanes_s for _, lanes_s in trials)
        return lanes_s < LANES_LIMIT * num_lanes * whole_s

    def _warm_up(self, plan: Plan, num_threads: int, set_up: Callable[[], None]) -> float:
        """Warms the plan up on so many new threads at the same time; returns the seconds that it took."""
        with ThreadPoolExecutor(num_threads, initializer=set_up) as executor:
            begin = time.monotonic()
            warm_ups = [executor.submit(plan.warm_up, self._stream, self._copies) for _ in range(num_threads)]
            for each in warm_ups:
                each.result()
            return time.monotonic() - begin

    def _load(self, run: _Run) -> None:
        try:
            with torch.inference_mode():
                run.batch.load()
        except Exception as error:  # whatever one batch does, the next one gets its chance
            self._fail(run, error)
            return
        if self._launch is not None:
            self._launch.put(run)
        else:
            self._compute(run)

    def _compute(self, run: _Run) -> None:
        batch = run.batch
        assert batch.loaded is not None
        start = time.monotonic()
        try:
            done = batch.plan.run(
                batch.loaded, batch.lease, count=len(batch.frames), stream=self._stream, copy_stream=self._copies
            )
        except Exception as error:
            self._fail(run, error)
        else:
            self._wait_for_turn(run)
            self._handover.put(Execution([batch], start, done, partial(self._end, run)))

    def _fail(self, run: _Run, error: Exception) -> None:
        self._wait_for_turn(run)
        run.batch.owner.fail(run.batch, error)
        self._end(run)

    def _wait_for_turn(self, run: _Run) -> None:
        """Waits until the batch before this one is handed over, which another lane may be computing."""
        before = run.before
        if run.lane is not None and before is not None:
            with self._changed:
                self._changed.wait_for(lambda: before.is_over)
        run.before = None

    def _end(self, run: _Run) -> None:
        with self._changed:
            run.is_over = True
            self._choice.end(run.lane, run.began, time.monotonic())
            self._changed.notify_all()
