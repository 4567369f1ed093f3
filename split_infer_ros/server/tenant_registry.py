"""Adds, changes and removes tenants, and loads and closes the models that they need."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, Notice, error_sentence
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.models.detections import Limits
from split_infer_ros.server.callbacks import Callbacks
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.improving.improver import Improver
from split_infer_ros.server.improving.split_rivals import with_split_rivals
from split_infer_ros.server.model_splits import ModelSplits
from split_infer_ros.server.opened_model import OpenedModel, OpenModel
from split_infer_ros.server.plan_changer import PlanChange, PlanChanger, naming
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.served_models import ServedModels
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.stack_builder import StackBuilder
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.tenant_state import TenantState, WaitingFrames, drop
from split_infer_ros.weight_streaming.ring_memory import RingMemory


class TenantRegistry:
    """Makes exactly the tenants of a given list run, with the models that they need.

    Loading a model can take seconds. Meanwhile frames flow, and the server may be configured, started or stopped.

    Args:
        changed: the condition that guards state shared with other threads; held briefly.
        changing: the lock that is held while models come, go or get other slots, but not while a model is loaded.
        tenants: the tenants that run, by name. Only this object changes the mapping.
        waiting: the waiting frames of these tenants.
        models: the models that are served.
        table: costs of the models.
        callbacks: the functions that models call.
        open_model: loads the model of a tenant, and says where its head is.
        database: keeps measurements.
        splits: makes the ``AutoSplit`` of each model.
        num_lanes: the server's number of lanes; 0: none.
        ring_memory: the ring through which the weights of all models are streamed; None: they stay in memory.
        say: called with a model's key and a sentence about its engine.

    Attributes:
        plan_changer: gives models new plans.
        improver: tries other engines while frames flow.
    """

    def __init__(
        self,
        *,
        changed: threading.Condition,
        changing: threading.RLock,
        tenants: dict[str, TenantState],
        waiting: WaitingFrames,
        models: ServedModels,
        table: CostTable,
        callbacks: Callbacks[ServedModel],
        open_model: OpenModel,
        database: Database,
        splits: ModelSplits,
        num_lanes: int,
        ring_memory: RingMemory | None,
        say: Callable[[str, str], object],
    ) -> None:
        self._changed = changed
        self._changing = changing
        self._one_list = threading.Lock()  # one list of tenants is applied at a time
        self._tenants = tenants
        self._waiting = waiting
        self._models = models
        self._table = table
        self._callbacks = callbacks
        self._open_model = open_model
        self._database = database
        self._splits = splits
        self._num_lanes = num_lanes
        self._ring_memory = ring_memory
        self._stack_builder = StackBuilder(changed, models, table, callbacks.on_error)
        self.plan_changer = PlanChanger(changed, models, waiting, self._stack_builder)
        self.improver = Improver(self.plan_changer, changing, say)

    def set(
        self, tenants: Sequence[Tenant], current: Callable[[], tuple[SharedSettings, Limits]]
    ) -> dict[str, ConfigurationError]:
        """Runs exactly these tenants. Returns by name which of them cannot run, and why.

        Args:
            tenants: the new list.
            current: returns the settings and limits in force. Device, precision and permissions never change. The rest
                may change while a model is loaded.
        """
        with self._one_list:
            self._remove({tenant.name for tenant in tenants})
            refused: dict[str, ConfigurationError] = {}
            unable: dict[str, ConfigurationError] = {}  # by model, so that no model is tried twice
            for tenant in tenants:
                key = tenant.model_key
                if key not in unable:
                    try:
                        self._provide(tenant, current)
                    except ConfigurationError as error:
                        unable[key] = error
                    except Exception as error:  # one model must not stop the other tenants
                        unable[key] = ConfigurationError(f"{key} cannot be served ({error_sentence(error)}).")
                        unable[key].__cause__ = error
                if key in unable:
                    refused[tenant.name] = unable[key]
                else:
                    self._place(tenant)
            self._remove_unused_models()
            with self._changing:
                self.plan_changer.undo_switches()
            self._stack_builder.build()
            return refused

    def finish(self, changes: Sequence[PlanChange]) -> None:
        """Finishes a change of settings that is in force; see ``PlanChanger.finish``. Then looks for rivals again."""
        self.plan_changer.finish(changes)
        self.improver.search_again()

    def stop_models(self, reason: DropReason) -> None:
        """Drops the batches in flight for a reason, and ends the heads of this process.

        A head of this process first finishes the batches that it has, unless it hangs. A head elsewhere may be gone, so
        the batches that it has are dropped, too.
        """
        with self._changed:
            models = self._models.all
        for model in models:
            if model.head is None:
                model.instance.collect(time.monotonic())
                model.instance.abandon(reason)
                continue
            for batch in list(model.instance.in_flight.values()):
                model.instance.drop(batch, reason)
            if not model.stop_head():
                model.instance.abandon(reason)

    def _remove(self, kept: Collection[str]) -> None:
        """Removes tenants whose names are not in ``kept``, and models that no tenant uses any more."""
        with self._changed:
            for name in [name for name in self._tenants if name not in kept]:
                drop(self._waiting.forget(name), DropReason.REMOVED)
                del self._tenants[name]
        self._remove_unused_models()

    def _remove_unused_models(self) -> None:
        with self._changing, self._changed:
            used = {state.model for state in self._tenants.values()}
            for served in [served for key, served in self._models.by_key.items() if key not in used]:
                self._models.remove(served)
                served.instance.advisor.note_unused()
                served.split.detach()
                self.improver.remove(served)

    def _provide(self, tenant: Tenant, current: Callable[[], tuple[SharedSettings, Limits]]) -> None:
        """Loads the tenant's model, unless another tenant uses it already."""
        key = tenant.model_key
        if key in self._models.by_key:
            return
        settings, _ = current()
        with ExitStack() as undo:
            opened = self._opened(tenant, settings)
            undo.callback(opened.model.close)
            self._serve(key, opened, settings, current)
            undo.pop_all()
        for note in opened.notes:
            self._callbacks.on_error(key, Notice(note))

    def _serve(
        self,
        key: str,
        opened: OpenedModel,
        settings: SharedSettings,
        current: Callable[[], tuple[SharedSettings, Limits]],
    ) -> None:
        """Lets an opened model serve under a key, with the settings that are in force by then."""
        models = self._models.by_key
        split = self._splits.open(key, opened, settings.improve)
        with naming(key, settings):
            split.fill_in(settings.stage, settings.goal, may_measure=True)  # frames of other models flow meanwhile
        if settings.measures:  # otherwise executions are chosen by rule, not by costs that other servers measured
            self._table.load_costs()
        with self._changing:
            settings, limits = current()
            with naming(key, settings):
                chosen = split.begin(settings.stage, settings.goal)
            settings = replace(settings, split_point=chosen.split_point)
            others = sum(served.plan.budget_bytes for served in models.values())
            served = ServedModel(
                key=key,
                opened=opened,
                split=split,
                settings=settings,
                limits=limits,
                changed=self._changed,
                callbacks=self._callbacks,
                advisor=MemoryAdvisor(opened.model.device, self._database, switches=settings.measures),
                num_lanes=self._num_lanes,
                ring_memory=self._ring_memory,
            )
            split.attach(partial(self.plan_changer.move, served))
            with naming(key, settings):
                served.open(settings, others)
            with self._changed:
                served.set_limits(current()[1])
                self._models.add(served)
            rivals = with_split_rivals(opened.rivals, split, opened.profiles)
            if rivals is not None:
                self.improver.add(served, rivals)

    def _opened(self, tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        try:
            return self._open_model(tenant, settings)
        except ConfigurationError:
            raise
        except Exception as error:  # a user's own model may raise anything, and the other tenants run on
            raise ConfigurationError(f"{tenant.model_key} cannot be loaded ({error}).") from error

    def _place(self, tenant: Tenant) -> None:
        """Starts the tenant, or gives it its new model, deadline and priority."""
        with self._changed:
            state = self._tenants.setdefault(tenant.name, TenantState(tenant=tenant, model=tenant.model_key))
            if state.model != tenant.model_key:
                drop(self._waiting.forget(tenant.name), DropReason.REMOVED)
            state.tenant, state.model = tenant, tenant.model_key
