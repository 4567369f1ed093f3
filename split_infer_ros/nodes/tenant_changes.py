"""Adds, changes and removes tenants on a thread of its own, because loading a model can take seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from split_infer_ros.errors import ConfigurationError, error_sentence
from split_infer_ros.models.takes import Takes
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.parameters.tenants import TenantsParameters
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.server import Server


@dataclass(frozen=True)
class AppliedTenants:
    """The tenants after a change of the parameters.

    Attributes:
        values: the parameters that were applied.
        running: the model's name, its labels and what it takes, of each tenant that runs, by the tenant's name.
        faults: why a tenant does not run as the parameters ask, by the tenant's name.
    """

    values: TenantsParameters
    running: Mapping[str, tuple[str, Sequence[str], Takes]]
    faults: dict[str, ConfigurationError]


class TenantChanges:
    """Makes a server run the tenants that parameters list. Changes are applied one after another.

    Args:
        node: the node ``tenants``.
        pipeline: the server that serves the tenants.
        on_applied: called after each change that was ``put``, on the executor's thread. On another thread it could not
            remove topics: an executor crashes if another thread destroys an endpoint for which it waits.
    """

    def __init__(
        self, node: ManagedNode[TenantsParameters], pipeline: Server, on_applied: Callable[[AppliedTenants], None]
    ) -> None:
        self._node = node
        self._pipeline = pipeline
        self._on_applied = on_applied
        self._applied: SimpleQueue[AppliedTenants] = SimpleQueue()
        self._is_due = node.create_guard_condition(self._tell)
        self._worker = WorkerThread("tenants", self._apply, use_one_thread)

    def apply(self, values: TenantsParameters) -> AppliedTenants:
        """Makes the server run the tenants that the parameters list. Works on the calling thread.

        Errors are not raised. They become faults in the result.
        """
        view = self._pipeline.view
        try:
            faults = self._pipeline.set_tenants(values.wanted)
        except Exception as error:  # an error in one change must not prevent the next one
            if is_sticky(error):
                self._node.device_loss.declare(error)
            missing = set(values.tenants) - view.tenants.keys()
            faults = dict.fromkeys(missing, ConfigurationError(error_sentence(error)))
        entries = {tenant: view.entry(tenant.name) for tenant in view.tenants.values()}
        running = {tenant.name: (tenant.model, entry.labels, entry.takes) for tenant, entry in entries.items()}
        return AppliedTenants(values, running, faults)

    def start(self) -> None:
        """Starts the thread that applies changes."""
        self._worker.start()

    def put(self, values: TenantsParameters) -> None:
        """Queues parameters. The thread applies their tenants; this method never waits."""
        self._worker.put(values)

    def close(self) -> None:
        """Waits until every change that was ``put`` is applied, then ends the thread."""
        self._worker.stop()
        self._node.destroy_guard_condition(self._is_due)

    def _apply(self, values: TenantsParameters) -> None:
        self._applied.put(self.apply(values))
        self._is_due.trigger()

    def _tell(self) -> None:
        while not self._applied.empty():
            self._on_applied(self._applied.get())
