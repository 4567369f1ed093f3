"""The models that a server serves, the stacks of them, and what their executions cost."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from split_infer_ros.server.costs.cost_measurer import CostMeasurer
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.executor import Executor
from split_infer_ros.server.loaded_models import LoadedModels
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.scheduler import Rules
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.stacks_in_use import StacksInUse

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel


class ServedModels:
    """Keeps models, stacks and costs up to date. Callers hold the server's lock.

    Args:
        changed: guards all that is shared; notified when models or rules change.
        work: has the same lock; notified when the dispatcher, which may rest, has something to do.
        executor: runs executions of the models.
        table: costs of executions.
        rules: how requests may be combined; may be replaced.
        measures: whether costs are measured. If not, executions are chosen by rule.

    Attributes:
        by_key: the models that are served.
        leaving: models that are no longer served but still have batches in flight.
        costs: what executions cost, as far as it is known.
        is_stale: True while the executor does not know the latest models, or their costs.
        has_started: whether heads of new models start at once.
        measurer: measures the costs that are missing.
        rules, measures: the arguments.
    """

    def __init__(
        self,
        changed: threading.Condition,
        work: threading.Condition,
        executor: Executor,
        table: CostTable,
        rules: Rules,
        *,
        measures: bool = True,
    ) -> None:
        self.by_key: dict[str, ServedModel] = {}
        self.leaving: list[ServedModel] = []
        self.costs = ExecutionModes(ExecutionCosts({}, {}))
        self.is_stale = False
        self.has_started = False
        self.measurer = CostMeasurer(table, executor.runners)
        self.rules = rules
        self.measures = measures
        self._changed = changed
        self._work = work
        self._lanes = executor.lanes
        self._table = table
        self._stacks = StacksInUse(self.by_key, table)

    @property
    def all(self) -> list[ServedModel]:
        """Models that are served, and removed models that still have batches in flight."""
        return [*self.by_key.values(), *self.leaving]

    @property
    def stacks(self) -> Mapping[str, StackedModel]:
        """Groups of models of one architecture that may run as one network, by name."""
        return self._stacks.by_name

    @property
    def are_measured(self) -> bool:
        """True once all models are measured, or if none is."""
        return not self.is_stale and (self.measurer.done or not self.measures)

    def execution_s(self, model: str) -> float:
        """Seconds that the model takes for one image when it runs alone; 0 until this is known."""
        return self.costs.whole.batch_s(model, 1)

    def add(self, model: ServedModel) -> None:
        """Adds a model and serves it from now on."""
        self.by_key[model.key] = model
        self.note_plan(model)
        self.renew()
        if self.has_started:
            model.start_head()

    def note_plan(self, model: ServedModel) -> None:
        """Notes that a model has a plan with other slots, and therefore other costs. Call ``renew`` next.

        Stacks with this model that end at another split point than its plan are released.
        """
        self._lanes.forget(model.key)
        self.measurer.forget(model.key)
        self._note_costs(model)

    def _note_costs(self, model: ServedModel) -> None:
        plan = model.plan
        self._table.add_model(model.key, plan.model, plan.cost_key, plan.pixels, has_lanes=plan.has_lanes)
        self.use_stacks(list(self.stacks.values()))

    def note_lanes(self, model: ServedModel) -> None:
        """Notes that batches of a model may have a lane from now on. What executions on all cores took is kept."""
        if self.by_key.get(model.key) is model:
            self._note_costs(model)
            self.renew()

    def remove(self, model: ServedModel) -> None:
        """Removes a model for which no frame waits. Its batches in flight are finished."""
        del self.by_key[model.key]
        self.leaving.append(model)
        self._stacks.remove_model(model.key)
        self._table.remove_model(model.key)
        self.renew()

    def take_gone(self) -> list[ServedModel]:
        """Returns the removed models that have no batches in flight any more, and forgets them."""
        gone = [model for model in self.leaving if not model.in_flight]
        if gone:
            self.leaving = [model for model in self.leaving if model.in_flight]
        return gone

    def use_stacks(self, stacks: Sequence[StackedModel]) -> None:
        """Uses each stack that fits the served models; see ``StacksInUse.use``. Unknown costs are measured."""
        if self._stacks.use(stacks):
            self.renew()

    def are_moved_from(self, settings: StageSettings) -> bool:
        """Returns whether the only model of a server has a plan with other settings than these, outside of a contest.

        Turns on live frames have then given it that plan. Models that share a server have settings of their own.
        """
        served = self.by_key.values()
        return not self.measures and any(not each.is_contested and each.plan.settings != settings for each in served)

    def renew(self) -> None:
        """Starts to measure missing costs again, after models or rules changed."""
        for model in self.by_key.values():
            model.co_runs.clear()  # its plan may have changed
        self.measurer.restart(self.rules)
        self.is_stale = True
        self._changed.notify_all()
        self._work.notify_all()

    def read_costs(self) -> None:
        """Reads the measured costs: notes which models cannot run, and releases stacks that do not pay."""
        self._stacks.release_what_does_not_pay()
        self.costs = self._table.costs()
        for key, model in self.by_key.items():
            model.failed = self._table.has_failed(key)

    def to_load(self) -> LoadedModels:
        """Returns what the executor must load."""
        return LoadedModels.of((*self.leaving, *self.by_key.values()), self.stacks, self.execution_s)
