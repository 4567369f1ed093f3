"""The thread that decides what runs next. Between executions it measures the costs that are not known yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.costs.cost_measurer import CostMeasurer, ExecutionRunner
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.execution.execution import Execution
from split_infer_ros.server.execution_chooser import ExecutionChooser
from split_infer_ros.server.executor import Executor
from split_infer_ros.server.loaded_models import LoadedModels
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.stacks_in_use import StacksInUse
from split_infer_ros.server.tenant_state import WaitingFrames, drop

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel

TICK_S = 0.25  # how often slots with expired leases are looked for


class Dispatcher:
    """Decides which executions run next, gives them to the executor, and holds the models and stacks that are served.

    Args:
        changed: the condition that guards state shared with other threads. Callers of methods that say "lock held"
            hold it.
        waiting: the frames that wait for their turn.
        executor: runs the chosen executions.
        table: costs of executions. The dispatcher measures those that are missing.
        rules: how requests may be combined; may be replaced.
        on_error: called with the model's name and an exception that cost frames.

    Attributes:
        models: the models that are served, by key.
        rules: the argument.
        measures: whether costs are measured. If not, executions are chosen by rules that need no costs.
        is_draining: whether no more frames will come. Batches that are not full then run without waiting for more.
    """

    def __init__(
        self,
        changed: threading.Condition,
        waiting: WaitingFrames,
        executor: Executor,
        table: CostTable,
        rules: Rules,
        on_error: Callable[[str, Exception], None],
        *,
        measures: bool = True,
    ) -> None:
        self.models: dict[str, ServedModel] = {}
        self.rules = rules
        self.is_draining = False
        self._changed = changed
        self._waiting = waiting
        self._executor = executor
        self._table = table
        self._on_error = on_error
        self._stacks = StacksInUse(self.models, table)
        self._chooser = ExecutionChooser(self.models, waiting, executor.lanes)
        self._modes = ExecutionModes(ExecutionCosts({}, {}))
        self._leaving: list[ServedModel] = []
        self._stale = False  # True while the executor does not know the latest models, or their costs
        runners: dict[int, ExecutionRunner] = {0: executor.whole}
        if executor.concurrent is not None:
            runners[executor.num_lanes] = executor.concurrent
        self._measurer = CostMeasurer(table, runners)
        self.measures = measures
        self._running = False
        self._at_rest = False  # True if no frame came for a tick
        self._reconcile_at = 0.0
        self._thread: threading.Thread | None = None

    @property
    def all_models(self) -> list[ServedModel]:
        """Models that are served, and removed models that still have batches in flight (lock held)."""
        return [*self.models.values(), *self._leaving]

    @property
    def leaving(self) -> list[ServedModel]:
        """Models that are no longer served but still have batches in flight (lock held)."""
        return list(self._leaving)

    @property
    def stacks(self) -> Mapping[str, StackedModel]:
        """Groups of models of one architecture that may run as one network, by name (lock held)."""
        return self._stacks.by_name

    @property
    def settled(self) -> bool:
        """True once the executor has the latest models, and no cost is left to measure (lock held)."""
        return not self._stale and (self._measurer.done or not self.measures)

    @property
    def costs(self) -> ExecutionModes:
        """The costs of executions in seconds, as far as they are known (lock held)."""
        return self._modes

    def execution_s(self, model: str) -> float:
        """Returns the seconds that a model takes for one image when it runs alone; 0 if not known (lock held)."""
        return self._modes.whole.batch_s(model, 1)

    def add(self, model: ServedModel) -> None:
        """Adds a model and serves it from now on (lock held)."""
        self.models[model.key] = model
        self.note_plan(model)
        self.renew()
        if self._running:
            model.start_head()

    def note_plan(self, model: ServedModel) -> None:
        """Notes that a model has a plan with other slots, and therefore other costs (lock held). Call ``renew`` next.

        Stacks with this model are given up if they end at another split point than its plan.
        """
        plan = model.plan
        self._executor.lanes.forget(model.key)
        self._table.add_model(model.key, model.model, plan.cost_key, plan.pixels, has_lanes=plan.has_lanes)
        self.use_stacks(list(self.stacks.values()))

    def note_lanes(self, model: ServedModel) -> None:
        """Notes that batches of a model may run on a lane from now on (lock held)."""
        if self.models.get(model.key) is model:
            self.note_plan(model)
            self.renew()

    def remove(self, model: ServedModel) -> None:
        """Stops serving a model for which no frame waits (lock held). Its batches in flight are still finished."""
        del self.models[model.key]
        self._leaving.append(model)
        self._stacks.remove_model(model.key)
        self._table.remove_model(model.key)
        self.renew()

    def use_stacks(self, stacks: Sequence[StackedModel]) -> None:
        """Uses from now on those of the given stacks that fit the models; see ``StacksInUse.use`` (lock held).

        Unknown costs of stacks are measured.
        """
        if self._stacks.use(stacks):
            self.renew()

    def renew(self) -> None:
        """Notes that models or rules changed (lock held).

        The dispatcher then loads the present models into the executor, and measures missing costs.
        """
        for model in self.models.values():
            model.co_runs.clear()  # its plan may have changed
        self._measurer.restart(self.rules)
        self._stale = True
        self._changed.notify_all()

    def start(self) -> None:
        """Starts the thread, the executor and the heads. A stopped dispatcher can be started again."""
        with self._changed:
            self._running = True
            for model in self.all_models:
                model.start_head()
        self._executor.start()
        self._thread = threading.Thread(target=self._loop, name="dispatch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finishes the executions that were begun, then ends the thread and the executor. Heads keep running."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._executor.stop()

    def reconcile(self) -> None:
        """Loads new models into the executor, settles batches that came back, and closes models that have left.

        A model has left if it was removed and has no batch in flight. This is called on the dispatcher's own thread, or
        while that thread does not run.
        """
        with self._changed:
            self._reconcile_at = time.monotonic() + TICK_S
            models = self.all_models
            idle = [model for model in self._leaving if not model.in_flight]
            stale, self._stale = self._stale, False
            if idle:
                self._leaving = [model for model in self._leaving if model.in_flight]
            if stale:
                self._renew_costs()
            loaded = None
            if stale or idle:
                loaded = LoadedModels.of((*self._leaving, *self.models.values()), self.stacks, self.execution_s)
        if loaded is not None:
            if self._executor.is_asynchronous:  # otherwise launched executions would run the backbones of later plans
                with self._changed:
                    self._changed.wait_for(lambda: self._executor.lanes.is_idle)
            self._executor.load(loaded)
        for model in models:
            model.instance.collect(time.monotonic())
        for model in idle:
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
        if self._stale or self._leaving or time.monotonic() >= self._reconcile_at:
            self.reconcile()
        if self.measures and (self._at_rest or not self._measurer.done):
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
            measurement = None if self._stale else self._measurer.next_measurement(self._at_rest)
            if measurement is None:
                return
            self._changed.wait_for(lambda: self._executor.lanes.is_idle)  # the measurement needs the device alone
        if not self._measurer.step(measurement):
            return
        with self._changed:
            if not self._measurer.finish(measurement):
                return
            self._stale = True
        self._table.save_costs()  # without the lock, because the disk may be slow
        if measurement.failure is not None:
            for key, _ in measurement.combination:
                self._on_error(key, measurement.failure)

    def _renew_costs(self) -> None:
        """Reads the measured costs: marks models that cannot run, and gives up stacks that save no time (lock held)."""
        self._stacks.release_what_does_not_pay()
        self._modes = self._table.costs()
        for key, model in self.models.items():
            model.failed = self._table.has_failed(key)
            if model.failed:
                drop(self._waiting.take(self._waiting.of_models([key])), DropReason.BACKBONE_ERROR)

    def _next_executions(self) -> list[Execution]:
        """Returns the executions that begin now. If there are none, waits for a change or for up to a tick."""
        with self._changed:
            if not self._waiting and self.settled:
                self._rest()
            if self._stale or not self._waiting:  # if stale, the executor does not have the latest plans yet
                return []
            before, now, self._at_rest = len(self._waiting), time.monotonic(), False
            choice = self._chooser.choose(
                self._modes, self.stacks, now=now, rules=self.rules, is_draining=self.is_draining
            )
            executions = [
                self._executor.begin(scheduled, batches, self.stacks.get(scheduled.decision.stack))
                for scheduled, batches in choice.executions
            ]
            if len(self._waiting) < before:  # if late requests were dropped, others may wait behind them
                if self._waiting.blocks:
                    self._changed.notify_all()  # wakes senders that wait for room
            elif self._running and self.settled:
                self._changed.wait(max(0.0, min(TICK_S, choice.wake_at - now)))
            return executions

    def _rest(self) -> None:
        """Waits until there is something to do, for up to a tick (lock held). Slots that come back are no reason."""
        is_over = self._changed.wait_for(self._has_work, TICK_S)
        self._at_rest = not is_over and self._executor.lanes.is_idle

    def _has_work(self) -> bool:
        is_gone = any(not model.in_flight for model in self._leaving)
        return bool(self._waiting) or self._stale or is_gone or not self._running
