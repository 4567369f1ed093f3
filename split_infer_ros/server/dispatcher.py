"""The thread that decides what runs next. Between executions it measures the costs that are not known yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.execution.execution import Execution
from split_infer_ros.server.execution_chooser import ExecutionChooser
from split_infer_ros.server.executor import Executor
from split_infer_ros.server.served_models import ServedModels
from split_infer_ros.server.tenant_state import WaitingFrames, drop

TICK_S = 0.25  # how often slots with expired leases are looked for


class Dispatcher:
    """Decides which executions run next, gives them to the executor, and loads and closes models.

    Args:
        changed: the condition that guards state shared with other threads.
        work: has the same lock. The thread rests on it while no frame waits, so slots that come back do not wake it.
        waiting: the frames that wait for their turn.
        models: the models that are served.
        executor: runs the chosen executions.
        on_error: called with the model's name and an exception that cost frames.
    """

    def __init__(
        self,
        changed: threading.Condition,
        work: threading.Condition,
        waiting: WaitingFrames,
        models: ServedModels,
        executor: Executor,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._changed = changed
        self._work = work
        self._waiting = waiting
        self._models = models
        self._executor = executor
        self._on_error = on_error
        self._chooser = ExecutionChooser(models.by_key, waiting, executor.lanes)
        self._running = False
        self._at_rest = False  # True if no frame came for a tick
        self._reconcile_at = 0.0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread, the executor and the heads. A stopped dispatcher can be started again."""
        with self._changed:
            self._running = self._models.has_started = True
            for model in self._models.all:
                model.start_head()
        self._executor.start()
        self._thread = threading.Thread(target=self._loop, name="dispatch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finishes the executions that were begun, then ends the thread and the executor. Heads keep running."""
        with self._changed:
            self._running = self._models.has_started = False
            self._changed.notify_all()
            self._work.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._executor.stop()

    def reconcile(self) -> None:
        """Loads new models into the executor, settles batches that came back, and closes models that have left.

        A model has left if it was removed and has no batch in flight. This is called on the dispatcher's own thread, or
        while that thread does not run.
        """
        models, loaded = self._models, None
        with self._changed:
            self._reconcile_at = time.monotonic() + TICK_S
            all_models, gone = models.all, models.take_gone()
            stale, models.is_stale = models.is_stale, False
            if stale:
                models.read_costs()
                failed = [key for key, model in models.by_key.items() if model.failed]
                drop(self._waiting.take(self._waiting.of_models(failed)), DropReason.BACKBONE_ERROR)
            if stale or gone:
                loaded = models.to_load()
        if loaded is not None:
            if self._executor.is_asynchronous:  # otherwise launched executions would run the backbones of later plans
                with self._changed:
                    self._changed.wait_for(lambda: self._executor.lanes.is_idle)
            self._executor.load(loaded)
        for model in all_models:
            model.instance.collect(time.monotonic())
        for model in gone:
            model.close()

    def _loop(self) -> None:
        self._executor.set_up_thread()
        while self._running:
            try:
                self._take_turns()
            except Exception as error:  # an exception would end the only thread that serves the other models
                self._on_error("dispatcher", error)
                with self._changed:
                    self._changed.wait(TICK_S)

    def _take_turns(self) -> None:
        models = self._models
        if models.is_stale or models.leaving or time.monotonic() >= self._reconcile_at:
            self.reconcile()
        if models.measures and (self._at_rest or not models.measurer.done):
            self._measure_once()
        for _ in range(max(1, self._executor.num_lanes)):
            executions = self._next_executions()
            for execution in executions:
                self._executor.run(execution)
            if not any(execution.scheduled.lane is not None for execution in executions):
                break  # the execution uses all threads, so no other can begin now

    def _measure_once(self) -> None:
        """Measures an unknown cost once. Requests are served between two measurements."""
        with self._changed:
            measurement = None if self._models.is_stale else self._models.measurer.next_measurement(self._at_rest)
            if measurement is None:
                return
            self._changed.wait_for(lambda: self._executor.lanes.is_idle)  # the measurement needs the device alone
        if not self._models.measurer.step(measurement):
            return
        with self._changed:
            if not self._models.measurer.finish(measurement):
                return
            self._models.is_stale = True
        self._models.measurer.save()  # without the lock, because the disk may be slow
        if measurement.failure is not None:
            for key, _ in measurement.combination:
                self._on_error(key, measurement.failure)

    def _next_executions(self) -> list[Execution]:
        """Returns the executions that begin now. If there are none, waits for a change or for up to a tick."""
        models, waiting = self._models, self._waiting
        with self._changed:
            if not waiting and models.are_measured:
                self._rest()
            if models.is_stale or not waiting:  # if stale, the executor does not have the latest plans yet
                return []
            before, now, self._at_rest = len(waiting), time.monotonic(), False
            choice = self._chooser.choose(models.costs, models.stacks, now=now, rules=models.rules)
            executions = [
                self._executor.begin(scheduled, batches, models.stacks.get(scheduled.decision.stack))
                for scheduled, batches in choice.executions
            ]
            if len(waiting) < before:  # if late requests were dropped, others may wait behind them
                if waiting.blocks:
                    self._changed.notify_all()  # wakes senders that wait for room
            elif self._running and models.are_measured:
                self._changed.wait(max(0.0, min(TICK_S, choice.wake_at - now)))
            return executions

    def _rest(self) -> None:
        """Waits for work, for up to a tick (lock held)."""
        is_over = self._work.wait_for(lambda: bool(self._waiting) or self._models.is_stale or not self._running, TICK_S)
        self._at_rest = not is_over and self._executor.lanes.is_idle
