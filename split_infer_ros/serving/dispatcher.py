"""The thread that decides what runs next, and measures between executions what is not known yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.memory_cost.task import Task
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.runtime.num_threads import use_all_threads
from split_infer_ros.serving.co_run import CoRunCriteria, find_pair
from split_infer_ros.serving.cost_measurer import CostMeasurer
from split_infer_ros.serving.cost_tables import CostTables
from split_infer_ros.serving.execution_costs import ExecutionCosts
from split_infer_ros.serving.execution_modes import ExecutionModes
from split_infer_ros.serving.lane_scheduler import ScheduledExecution
from split_infer_ros.serving.request import Request
from split_infer_ros.serving.scheduler import Decision, RequestBatch, Rules
from split_infer_ros.serving.served_model import ServedModel
from split_infer_ros.serving.shared_weights import prefetch_next
from split_infer_ros.serving.tenant_state import WaitingFrames, drop
from split_infer_ros.serving.worker_pool import WorkerPool

TICK_S = 0.25  # how often slots are looked after while nothing else happens


class Dispatcher:
    """Decides which requests run next, and gives each execution to the workers.

    Args:
        changed: guards all that is shared. Methods that say "lock held" are called with it held.
        waiting: frames to choose from.
        workers: execute what was decided.
        tables: costs of executions. The dispatcher measures those that are missing.
        rules: how requests may be put together; may be replaced.
        on_error: takes the model's name and an exception that cost frames.

    Attributes:
        models: the models that are served, by their keys.
    """

    def __init__(
        self,
        changed: threading.Condition,
        waiting: WaitingFrames,
        workers: WorkerPool,
        tables: CostTables,
        rules: Rules,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self.models: dict[str, ServedModel] = {}
        self.rules = rules
        self._changed = changed
        self._waiting = waiting
        self._workers = workers
        self._tables = tables
        self._on_error = on_error
        self._modes = ExecutionModes(ExecutionCosts({}, {}))
        self._leaving: list[ServedModel] = []
        self._stale = False  # the workers have not heard of the latest models, or of their costs
        lanes = [] if workers.concurrent is None or tables.lane is None else [(workers.concurrent, tables.lane)]
        self._measurer = CostMeasurer([(workers.whole, tables.whole), *lanes])
        self._running = False
        self._at_rest = False  # nothing came or ended for a tick
        self._thread: threading.Thread | None = None

    @property
    def all_models(self) -> list[ServedModel]:
        """Models that are served, and models that leave once their batches are back (lock held)."""
        return [*self.models.values(), *self._leaving]

    @property
    def settled(self) -> bool:
        """True once all models are measured (lock held)."""
        return not self._stale and self._measurer.done

    def execution_s(self, model: str) -> float:
        """Seconds that one image takes the model alone; 0 until that is known (lock held)."""
        costs = self._modes.whole
        return costs.batch_s(model, 1) if model in costs.alone_s else 0.0

    def add(self, model: ServedModel) -> None:
        """Adds a model, which is served once it is measured (lock held)."""
        self.models[model.key] = model
        self._tables.add_model(model.key, model.model, model.plan.cost_key)
        self.renew()
        if self._running:
            model.head.start()

    def remove(self, model: ServedModel) -> None:
        """Removes a model for which no frame waits; its batches in flight are finished (lock held)."""
        del self.models[model.key]
        self._leaving.append(model)
        self._tables.remove_model(model.key)
        self.renew()

    def renew(self) -> None:
        """Measures anew what is missing, after models came or went or the rules changed (lock held)."""
        for model in self.models.values():
            model.run_alone()  # the memory may be another's now
        self._measurer.restart(self.rules)
        self._stale = True
        self._changed.notify_all()

    def start(self) -> None:
        """Starts, until ``stop``; may be started again."""
        with self._changed:
            self._running = True
            for model in self.all_models:
                model.head.start()
        self._workers.start()
        self._thread = threading.Thread(target=self._loop, name="dispatch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Finishes the executions that were begun, then ends; heads go on."""
        with self._changed:
            self._running = False
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._workers.stop()

    def look_round(self) -> None:
        """Loads new models into the workers, settles batches that come back by themselves, and closes models that left.

        Called on the dispatcher's own thread, or while it does not run.
        """
        with self._changed:
            models = self.all_models
            idle = [model for model in self._leaving if not model.in_flight]
            self._leaving = [model for model in self._leaving if model.in_flight]
            stale, self._stale = self._stale, False
            if stale:
                self._renew_costs()
            backbones = {model.key: model.plan.backbone for model in (*self._leaving, *self.models.values())}
            image_s = {key: self.execution_s(key) or 1.0 for key in backbones}
        if stale or idle:
            self._workers.load(backbones, image_s)
        for model in models:
            model.collect(time.monotonic())
        for model in idle:
            model.close()

    def _loop(self) -> None:
        use_all_threads()
        while self._running:
            try:
                self._take_turns()
            except Exception as error:  # no other thread could serve the other models
                self._on_error("dispatcher", error)
                with self._changed:
                    self._changed.wait(TICK_S)

    def _take_turns(self) -> None:
        self.look_round()
        self._make_co_run_plan()
        self._measure_once()
        for _ in range(max(1, self._workers.num_lanes)):
            executions = self._next_executions()
            for execution, batches in executions:
                self._workers.execute(batches, execution.lane, partial(self._workers.lane_scheduler.end, execution))
            if not any(execution.lane is not None for execution, _ in executions):
                break  # this execution has all threads, so no other can begin now

    def _measure_once(self) -> None:
        """Takes one sample of an unknown cost. Requests are served between two samples."""
        with self._changed:
            measurement = None if self._stale else self._measurer.next_measurement(self._at_rest)
            self._changed.notify_all()
            if measurement is None:
                return
            self._changed.wait_for(lambda: self._workers.lane_scheduler.is_idle)  # alone on the device
        if not self._measurer.step(measurement):
            return
        with self._changed:
            if not self._measurer.finish(measurement):
                return
            self._stale = True
        if measurement.failure is not None:
            for key, _ in measurement.combination:
                self._on_error(key, measurement.failure)

    def _renew_costs(self) -> None:
        """Notes for each model whether it can be scheduled, or never will be (lock held)."""
        self._modes = self._tables.costs()
        for key, model in self.models.items():
            model.failed = self._tables.has_failed(key)
            model.ready = not model.failed and (model.ready or self._tables.is_ready(key))
            if model.failed:
                drop(self._waiting.take(self._waiting.of_models([key])), DropReason.BACKBONE_ERROR)

    def _next_executions(self) -> list[tuple[ScheduledExecution, list[InFlightBatch]]]:
        """Decides what is executed now; waits for a change if there is nothing."""
        with self._changed:
            before, now, self._at_rest = len(self._waiting), time.monotonic(), False
            executions = self._decide(now)
            for execution, _ in executions:
                self._workers.lane_scheduler.begin(execution, now)
            # if late requests were dropped, there may be others behind them
            if not executions and self._running and self.settled and len(self._waiting) == before:
                self._at_rest = (
                    not self._changed.wait(TICK_S) and not self._waiting and self._workers.lane_scheduler.is_idle
                )
            return executions

    def _decide(self, now: float) -> list[tuple[ScheduledExecution, list[InFlightBatch]]]:
        able = {key for key, model in self.models.items() if model.ready and model.has_room}
        queue = self._waiting.of_models(able)
        execution = self._workers.lane_scheduler.choose(queue, self._modes, now=now, rules=self.rules)
        decision = execution.decision
        pair = self._find_pair(decision, queue, now) if execution.lane is None else []
        prefetch_next(self.models, decision, queue, self._modes.whole, now=now, rules=self.rules)
        drop(self._waiting.take(decision.late), DropReason.DEADLINE)
        if pair:
            return [
                (ScheduledExecution(Decision((batch,))), [self._take_off(batch, now, plan)]) for batch, plan in pair
            ]
        if not decision.batches:
            return []
        return [(execution, [self._take_off(batch, now) for batch in decision.batches])]

    def _find_pair(self, decision: Decision, queue: Sequence[Request], now: float) -> list[tuple[RequestBatch, Plan]]:
        """Finds two executions for a co-run, if both models have slots and staging for it."""
        known = self.models[decision.batches[0].model].co_runs if len(decision.batches) == 1 else None
        if known is None:
            return []
        constants, legal = known
        criteria = CoRunCriteria(constants=constants, legal=legal, task_of=self._task)
        pair = find_pair(decision, queue, self._modes.whole, now=now, rules=self.rules, criteria=criteria)
        plans = [(batch, self.models[batch.model].plan_by(policy)) for batch, policy in pair.policies] if pair else []
        found = [(batch, plan) for batch, plan in plans if plan is not None]
        return found if len(found) == len(plans) else []

    def _task(self, batch: RequestBatch) -> Task:
        count, image_bytes = len(batch.requests), self._waiting.image_bytes(batch.requests)
        return self.models[batch.model].task(count, image_bytes, self._modes.whole.batch_s(batch.model, count))

    def _take_off(self, batch: RequestBatch, now: float, plan: Plan | None = None) -> InFlightBatch:
        return self.models[batch.model].take_off(self._waiting.take(batch.requests), now, plan)

    def _make_co_run_plan(self) -> None:
        """Makes one plan that a co-run had asked for, if there is memory left."""
        with self._changed:
            for model in self.models.values():
                if (policy := model.co_run_plans.pick()) is not None:
                    break
            else:
                return
            taken = sum(other.budget_bytes for other in self.all_models)
        plan = model.make_co_run_plan(policy, taken)
        with self._changed:
            if not self._stale:
                model.co_run_plans.put(policy, plan)
                return
        if plan is not None:  # models or settings changed meanwhile, and memory may be short
            plan.close()
