"""Who runs on what: tenants as they come, change and go, and the models that come and go with them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.models.detections import Limits
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.serving.cost_tables import CostTables
from split_infer_ros.serving.dispatcher import Dispatcher
from split_infer_ros.serving.model_instance import Callbacks, ModelInstance
from split_infer_ros.serving.shared_settings import SharedSettings
from split_infer_ros.serving.tenant import Tenant
from split_infer_ros.serving.tenant_state import TenantState, WaitingFrames, drop
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.ring_memory import RingMemory


class TenantRegistry:
    """Changes as long as models take to load, in which time frames flow, and settings and the state may change.

    Args:
        changed: guards what is shared with other threads; held for moments only.
        changing: held while models come, go or get other slots, but not while one is loaded.
        members: tenants that run, by name; this alone changes them.
        waiting: frames of theirs.
        dispatcher: that serves the models.
        books: of their costs.
        callbacks: whom models tell.
        database: in which measurements are kept.
        ring_memory: the ring through which all models' weights are read, unless they stay resident.
    """

    def __init__(
        self,
        changed: threading.Condition,
        changing: threading.RLock,
        members: dict[str, TenantState],
        waiting: WaitingFrames,
        dispatcher: Dispatcher,
        tables: CostTables,
        callbacks: Callbacks,
        database: Database,
        ring_memory: RingMemory | None,
    ) -> None:
        self._changed = changed
        self._changing = changing
        self._one_list = threading.Lock()  # of tenants, at a time
        self._members = members
        self._waiting = waiting
        self._dispatcher = dispatcher
        self._tables = tables
        self._callbacks = callbacks
        self._database = database
        self._ring_memory = ring_memory

    def set(
        self, tenants: Sequence[Tenant], current: Callable[[], tuple[SharedSettings, Limits]]
    ) -> dict[str, ConfigurationError]:
        """Exactly these from now on, as far as they can be; returns who cannot, and why.

        Args:
            tenants: who is wanted.
            current: settings and limits in force; which device, precision and code there may be does not change.
        """
        with self._one_list:
            self._remove({tenant.name for tenant in tenants})
            refused: dict[str, ConfigurationError] = {}
            unable: dict[str, ConfigurationError] = {}  # by model: what was tried once is not tried again
            for tenant in tenants:
                key = tenant.model_key
                if key not in unable:
                    try:
                        self._provide(tenant, current)
                    except ConfigurationError as error:
                        unable[key] = error
                if key in unable:
                    refused[tenant.name] = unable[key]
                else:
                    self._place(tenant)
            self._remove_unused_models()
            return refused

    def plan_anew(self, settings: SharedSettings) -> dict[ModelInstance, Plan]:
        """Slots and staging of all models for these settings.

        Raises:
            ConfigurationError: there is no memory for all of it; nothing was kept.
        """
        plans: dict[ModelInstance, Plan] = {}
        taken = 0
        try:
            for line in self._dispatcher.lines.values():
                plans[line] = line.make_plan(settings.stage, taken)
                taken += line.budget_of(plans[line])
        except ConfigurationError:
            for plan in plans.values():
                plan.close()
            raise
        return plans

    def _remove(self, kept: Collection[str]) -> None:
        """Tenants that are not among these go, and with them the models that nobody else has."""
        with self._changed:
            for name in [name for name in self._members if name not in kept]:
                drop(self._waiting.forget(name), "removed")
                del self._members[name]
        self._remove_unused_models()

    def _remove_unused_models(self) -> None:
        with self._changing, self._changed:
            used = {member.model for member in self._members.values()}
            for line in [line for key, line in self._dispatcher.lines.items() if key not in used]:
                self._dispatcher.remove(line)

    def _provide(self, tenant: Tenant, current: Callable[[], tuple[SharedSettings, Limits]]) -> None:
        """Its model is loaded, for this tenant if for no other."""
        key, lines = tenant.model_key, self._dispatcher.lines
        if key in lines:
            return
        model = self._load(tenant, current()[0])
        self._tables.load_costs(model)
        with self._changing:
            settings, limits = current()
            others = sum(line.budget_of(line.plan) for line in lines.values())  # plans beside give way to it
            line = ModelInstance(
                key, model, settings, others, limits, self._callbacks, self._database, self._ring_memory
            )
            with self._changed:
                line.head.limits = current()[1]
                self._dispatcher.add(line)

    def _load(self, tenant: Tenant, settings: SharedSettings) -> SplitModel:
        try:
            return load_model(
                *(tenant.model, tenant.weights, settings.device, settings.precision),
                allow_user_code=settings.allow_user_code,
            )
        except ConfigurationError:
            raise
        except Exception as error:  # a model of the user's own may raise anything; the other tenants run on
            raise ConfigurationError(f"{tenant.model_key} cannot be loaded ({error}).") from error

    def _place(self, tenant: Tenant) -> None:
        """The tenant runs, in the form that it has now."""
        with self._changed:
            member = self._members.setdefault(tenant.name, TenantState(tenant, tenant.model_key))
            if member.model != tenant.model_key:
                drop(self._waiting.forget(tenant.name), "removed")
            member.tenant, member.model = tenant, tenant.model_key
