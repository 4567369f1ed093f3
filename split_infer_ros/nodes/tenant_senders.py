"""Keeps one sender for each tenant. It sends handles or features to the tenant's head in another process."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports import INTRA_PROCESS, SENDERS, Sender
from split_infer_ros.server.opened_model import OpenedModel, OpenModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant


class TenantSenders:
    """Opens a sender for each tenant before the tenant's model is loaded. The sender's topics begin with ``NAME/``.

    A tenant that gets another model keeps its sender. With transport ``intra_process`` there are no senders, because
    the server runs the heads. Only the executor's thread may call the methods, except ``open_model``: the executor
    would crash if another thread removed an endpoint for which it waits.

    Args:
        node: the node ``tenants``.
        transport: the name of the transport.
        open_model: loads the model of a tenant.
    """

    def __init__(self, node: ManagedNode[Any], transport: str, open_model: OpenModel) -> None:
        self._node = node
        self._transport = transport
        self._open_model = open_model
        self._senders: dict[str, Sender] = {}

    def open(self, tenants: Collection[str]) -> None:
        """Opens a sender for each of the tenants that has none yet."""
        if self._transport == INTRA_PROCESS:
            return
        for name in tenants:
            if name not in self._senders:
                self._senders[name] = SENDERS[self._transport](self._node, f"{name}/")

    def open_model(self, tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        """Loads the model of a tenant. The result holds the tenant's sender as its transport.

        Raises:
            ConfigurationError: the model does not load, or the tenant was removed meanwhile.
        """
        opened = self._open_model(tenant, settings)
        if self._transport == INTRA_PROCESS:
            return opened
        sender = self._senders.get(tenant.name)
        if sender is None:
            raise ConfigurationError(f"Tenant {tenant.name} was removed while its model was loaded.")
        return replace(opened, transport=sender)

    def reaches_head(self, tenant: str) -> bool:
        """Returns whether a tenant's head in another process would get a batch that is sent now."""
        sender = self._senders.get(tenant)
        return sender is not None and sender.heads_reached > 0

    def close_unused(self, tenants: Collection[str]) -> None:
        """Closes the senders of tenants that are not among ``tenants``, unless a model instance still uses them."""
        for name in self._senders.keys() - set(tenants):
            if not self._senders[name].is_used:
                self._senders.pop(name).close()

    def close(self) -> None:
        """Closes all senders."""
        while self._senders:
            self._senders.popitem()[1].close()
