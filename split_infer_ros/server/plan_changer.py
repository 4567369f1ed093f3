"""Gives models new plans between two batches: all models for new settings, or one model for a new split point."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.served_models import ServedModels
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.split_chooser import FilledIn
from split_infer_ros.server.stack_builder import StackBuilder
from split_infer_ros.server.tenant_state import WaitingFrames, drop
from split_infer_ros.split.model import SplitModel


@dataclass(frozen=True, slots=True, eq=False)
class PlanChange:
    """A plan that is ready for use.

    Attributes:
        served: the model.
        plan: its next plan.
        has_other_slots: whether the plan has slots of its own, rather than those of the model's present plan.
        filled: the filled-in settings for which the plan was made; None if ``served.split`` has them already.
    """

    served: ServedModel
    plan: Plan
    has_other_slots: bool
    filled: FilledIn | None = None


class PlanChanger:
    """Changes models' plans while frames flow. Batches in flight keep their plans.

    Callers hold the server's lock ``changing``.

    Args:
        changed: the condition that guards state shared with other threads; held briefly.
        models: the models that are served.
        waiting: the frames that wait for these models.
        stack_builder: builds the stacks that fit the new plans.
    """

    def __init__(
        self,
        changed: threading.Condition,
        models: ServedModels,
        waiting: WaitingFrames,
        stack_builder: StackBuilder,
    ) -> None:
        self._changed = changed
        self._models = models
        self._waiting = waiting
        self._stack_builder = stack_builder

    def prepare(self, settings: SharedSettings, is_running: bool) -> list[PlanChange]:
        """Makes plans of all models for new settings. A model keeps its present plan if that fits the settings.

        Args:
            settings: the new settings of the server.
            is_running: whether frames flow.

        Raises:
            ConfigurationError: memory is short for the plans, or split point ``auto`` lacks measured times of a model.
                Nothing was kept.
        """
        changes: list[PlanChange] = []
        taken = 0
        try:
            for served in self._models.by_key.values():
                with naming(served.key, settings):
                    filled = served.split.fill_in(settings.stage, settings.goal)
                    changes.append(self._change(served, filled.settings, taken, is_running, filled))
                taken += changes[-1].plan.budget_bytes
        except Exception:
            for change in changes:
                if change.has_other_slots:
                    change.plan.close()
            raise
        return changes

    def adopt(self, changes: Sequence[PlanChange]) -> None:
        """Puts prepared plans in force (lock held). Call ``ServedModels.renew`` and ``finish`` next."""
        for change in changes:
            change.served.instance.use(change.plan)
        for change in changes:
            if change.has_other_slots:
                self._models.note_plan(change.served)

    def finish(self, changes: Sequence[PlanChange]) -> None:
        """Reports where new plans differ from their settings, and builds the stacks that fit the new plans."""
        for change in changes:
            if change.filled is not None:
                change.served.split.adopt(change.filled)
            if change.has_other_slots:
                change.served.instance.report_notes()
        if any(change.has_other_slots for change in changes):
            self._stack_builder.build()

    def move(self, served: ServedModel, settings: StageSettings) -> None:
        """Gives one model a plan for other settings, which its ``AutoSplit`` proposes. Other models keep running.

        Raises:
            ConfigurationError: memory is short, or the model cannot run. The model keeps its present plan.
        """
        others = sum(other.plan.budget_bytes for other in self._models.by_key.values() if other is not served)
        changes = [self._change(served, settings, others, is_running=True)]
        with self._changed:
            self.adopt(changes)
            self._models.renew()
        self.finish(changes)

    @property
    def knows_costs(self) -> bool:
        """Whether the costs of the present plans are known, or the server measures none."""
        return self._models.are_measured

    def may_contest(self, served: ServedModel) -> bool:
        """Returns whether a rival's plan may replace a model's own now; ``changing`` need not be held.

        The model must be served, and costs must be known. It may be in no stack, which needs the engine.
        """
        with self._changed:
            is_stacked = any(served.key in stack.members for stack in self._models.stacks.values())
            return self.knows_costs and not is_stacked and self._models.by_key.get(served.key) is served

    def rival_plan(self, served: ServedModel, rival: SplitModel, settings: StageSettings | None = None) -> Plan:
        """Returns a rival's plan, ready for use. Other models and this one keep running.

        With the settings of the present plan and features of the same types, it shares the slots of the present plan.

        Args:
            served: the model that serves.
            rival: what the plan runs: the model itself, or the same network on another engine.
            settings: the settings of the plan; None: those of the present one.

        Raises:
            ConfigurationError: the model is not served any more, memory is short, or the rival or the head cannot run.
                Nothing was kept.
        """
        if self._models.by_key.get(served.key) is not served:
            raise ConfigurationError(f"{served.key} is not served any more.")
        taken = sum(other.plan.budget_bytes for other in self._models.by_key.values())
        plan = served.make_plan(settings or served.plan.settings, taken, rival)
        return plan if plan.pool is served.plan.pool else self._with_head(served, plan)

    def put_in_force(self, served: ServedModel, plan: Plan) -> None:
        """Puts a prepared plan of one model in force, if it is still served. Other models keep running.

        The only model of a server decides how many frames a batch has, and how many wait.
        """
        with self._changed:
            if self._models.by_key.get(served.key) is served:
                served.instance.use(plan)
                self._models.note_plan(served)
                if not self._models.measures:
                    settings = SharedSettings.of_stage(plan.settings)
                    self._models.rules = settings.rules
                    drop(self._waiting.configure(settings.max_waiting, settings.drop_policy), DropReason.OVERRUN)
                self._models.renew()

    def build_stacks(self) -> None:
        """Builds the stacks that fit the present plans; ``changing`` need not be held."""
        self._stack_builder.build()

    def undo_switches(self) -> None:
        """Gives a new plan to each model whose memory policy was chosen because of models that no longer run (Eq. 11).

        A model keeps its plan if there is no memory for a new one. It is then slower, but takes less memory.
        """
        models = self._models.by_key
        for served in models.values():
            if not served.co_runs.breaks_guideline:
                continue
            with suppress(ConfigurationError):
                taken = sum(other.plan.budget_bytes for other in models.values())
                self.put_in_force(served, served.make_plan(served.plan.settings, taken))

    def next_plan(self, served: ServedModel, settings: StageSettings, taken_bytes: float, is_running: bool) -> Plan:
        """Returns a model's plan for other settings, ready for use: its present plan if that fits, or else a new one.

        A new plan is warmed up with blank batches, and its head is prepared. While frames flow, the only model of a
        server is not warmed up if torch runs it. There, warming up would only choose kernels, and its threads would
        slow the threads that serve frames.

        Args:
            served: the model.
            settings: the settings of the plan.
            taken_bytes: the part of the memory budget that other models use.
            is_running: whether frames flow.

        Raises:
            ConfigurationError: memory is short, or the model cannot run. Nothing was kept.
        """
        before, instance = served.plan, served.instance
        plan = before.with_settings(settings)
        if plan is not None:
            return plan
        if is_running and not self._models.measures and not isinstance(before.backbone, EnginePart):
            plan = served.lanes.follow(instance.make_plan(settings, taken_bytes))
        else:
            plan = served.make_plan(settings, taken_bytes)
        return self._with_head(served, plan)

    def _with_head(self, served: ServedModel, plan: Plan) -> Plan:
        """Has the head prepare its partition for a plan, and returns the plan. Closes the plan if that fails."""
        try:
            served.instance.prepare_head(plan)
        except Exception:
            plan.close()
            raise
        return plan

    def _change(
        self,
        served: ServedModel,
        settings: StageSettings,
        taken_bytes: float,
        is_running: bool,
        filled: FilledIn | None = None,
    ) -> PlanChange:
        plan = self.next_plan(served, settings, taken_bytes, is_running)
        return PlanChange(served, plan, plan.pool is not served.plan.pool, filled)


@contextmanager
def naming(key: str, settings: SharedSettings) -> Iterator[None]:
    """Puts a model's key in front of each ConfigurationError of a ``with`` block.

    If the server has a single model, the errors stay as they are.

    Args:
        key: the model's key.
        settings: the settings of the server.
    """
    try:
        yield
    except ConfigurationError as error:
        if not settings.measures:  # the server of a single model
            raise
        raise ConfigurationError(f"{key}: {error}") from error
