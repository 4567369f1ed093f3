"""What can be seen of a server: tenants and their reports, models, what executions cost."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.server.admission import Admission
from split_infer_ros.server.ledger import Ledger
from split_infer_ros.server.report import PipelineReport
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.served_models import ServedModels
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.tenant_state import TenantState, WaitingFrames


class ServerView:
    """Shows a server at this moment, and changes nothing. Any thread may use it.

    Args:
        changed: the condition that guards state shared with other threads.
        tenants: the tenants that run, by name.
        waiting: the frames that wait.
        admission: says whether frames are accepted.
        models: the models that are served.
    """

    def __init__(
        self,
        changed: threading.Condition,
        tenants: Mapping[str, TenantState],
        waiting: WaitingFrames,
        admission: Admission,
        models: ServedModels,
    ) -> None:
        self._changed = changed
        self._tenants = tenants
        self._waiting = waiting
        self._admission = admission
        self._models = models

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """The tenants that run, by name. Tenants that could not be started are not among them."""
        with self._changed:
            return {name: state.tenant for name, state in self._tenants.items()}

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The models that are served, by key."""
        with self._changed:
            return dict(self._models.by_key)

    @property
    def leaving(self) -> Collection[ServedModel]:
        """Models that no tenant uses but that still have batches in flight."""
        with self._changed:
            return list(self._models.leaving)

    @property
    def stacks(self) -> Collection[str]:
        """The names of the stacks. A stack is a group of models of one architecture that may run as one network."""
        with self._changed:
            return list(self._models.stacks)

    @property
    def costs(self) -> ExecutionModes:
        """The costs of executions in seconds, as far as they are known."""
        with self._changed:
            return self._models.costs

    @property
    def is_open(self) -> bool:
        """Whether frames are accepted."""
        return self._admission.is_open

    @property
    def is_lost(self) -> bool:
        """Whether the device was lost, and with it all frames that the server had accepted."""
        return self._admission.is_lost

    @property
    def num_waiting(self) -> int:
        """How many frames wait for their turn."""
        with self._changed:
            return len(self._waiting)

    @property
    def is_measured(self) -> bool:
        """True once no cost of an execution is left to measure."""
        with self._changed:
            return self._models.are_measured

    def entry(self, tenant: str) -> ModelEntry:
        """Returns the entry of the tenant's model; raises ConfigurationError if there is no such tenant."""
        return self.model_of(tenant).instance.model.entry

    def model_of(self, tenant: str) -> ServedModel:
        """Returns the model that serves a tenant; raises ConfigurationError if there is no such tenant."""
        with self._changed:
            return self._models.by_key[self._find(tenant).model]

    def ledger(self, tenant: str) -> Ledger:
        """Returns the ledger of a tenant's frames; raises ConfigurationError if there is no such tenant."""
        with self._changed:
            return self._find(tenant).ledger

    def report(self, tenant: str, now: float) -> PipelineReport:
        """Reports a tenant's counts and times at this moment, and the memory of its model.

        The counts come from the tenant's own ledger. Times of stages come from batches with at least one of its frames.

        Raises:
            ConfigurationError: there is no such tenant.
        """
        with self._changed:
            state = self._find(tenant)
            served = self._models.by_key[state.model]
        model = served.report()  # without the lock, because torch's allocator takes a while to tell its memory
        return state.meters.report(now, state.ledger.counts(), model)

    def _find(self, tenant: str) -> TenantState:
        if tenant not in self._tenants:
            raise ConfigurationError(f"There is no tenant '{tenant}'; there are: {', '.join(self._tenants) or 'none'}.")
        return self._tenants[tenant]
