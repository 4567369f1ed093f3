"""Decides which frames of tenants are taken, and counts the others under the reason for which they are not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ImageError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.server.dispatcher import Dispatcher
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.tenant_state import TenantFrame, TenantState, WaitingFrames, drop


class Admission:
    """Takes frames of tenants between ``begin`` and ``end``, unless the device is lost. Any thread may use it.

    Args:
        changed: guards what is shared with other threads.
        tenants: the tenants that run, by name.
        waiting: holds the frames that wait for their turn.
        dispatcher: knows the models.
        on_error: called with the name of a tenant or model, and an exception that cost frames or a notice.

    Attributes:
        is_open: whether frames are taken.
        is_lost: whether the device was lost, and all frames with it.
    """

    def __init__(
        self,
        changed: threading.Condition,
        tenants: Mapping[str, TenantState],
        waiting: WaitingFrames,
        dispatcher: Dispatcher,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._changed = changed
        self._tenants = tenants
        self._waiting = waiting
        self._dispatcher = dispatcher
        self._on_error = on_error
        self.is_open = False
        self.is_lost = False

    def begin(self) -> None:
        """Takes frames from now on."""
        with self._changed:
            self._dispatcher.is_draining = False
            self.is_open = not self.is_lost

    def end(self, drain_s: float) -> DropReason:
        """Takes no more frames, gives earlier ones ``drain_s`` seconds to finish, and drops those that still wait.

        Returns:
            The reason under which those frames were dropped. The caller drops batches in flight under it, too.
        """
        reason = DropReason.DEVICE_LOST if self.is_lost else DropReason.SHUTDOWN
        with self._changed:
            self.is_open, self._dispatcher.is_draining = False, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_idle, drain_s)
            drop(self._waiting.clear(), reason)
        return reason

    def submit(self, tenant: str, pixels: Pixels, origin: Origin, now: float) -> None:
        """Takes a frame of a tenant; never waits. A frame for a tenant that does not exist is not counted."""
        with self._changed:
            state = self._tenants.get(tenant)
            if state is None:
                return
            ticket = state.ledger.receive(now)
            if not self.is_open:
                ticket.drop(DropReason.DEVICE_LOST if self.is_lost else DropReason.INACTIVE)
            elif self._dispatcher.models[state.model].failed:
                ticket.drop(DropReason.BACKBONE_ERROR)
            else:
                frame = TenantFrame(pixels, origin, ticket, state)
                drop(self._waiting.add(frame, now, self._dispatcher.execution_s(state.model)), DropReason.OVERRUN)
                self._changed.notify_all()

    def is_full(self, tenant: str) -> bool:
        """Returns whether the tenant's senders are asked to wait. Callers need not hold the lock."""
        state = self._tenants.get(tenant)
        return state is not None and self.is_open and self._waiting.is_full(state)

    def wait_for_room(self, tenant: str, timeout_s: float) -> bool:
        """Waits while the tenant is full, on the sender's thread; returns whether there is room."""
        with self._changed:
            return self._changed.wait_for(lambda: not self.is_full(tenant), timeout_s)

    def refuse(self, tenant: str, error: ImageError, now: float) -> None:
        """Counts a frame of a tenant that cannot be read."""
        with self._changed:
            if tenant in self._tenants:
                self._tenants[tenant].ledger.receive(now).drop(error.reason)

    def missed(self, tenant: str, count: int, reason: DropReason) -> None:
        """Counts frames of a tenant that were sent and never arrived."""
        with self._changed:
            if tenant in self._tenants:
                self._tenants[tenant].ledger.missed(count, reason)

    def fail(self, name: str, error: Exception) -> None:
        """Reports an exception; if the device is lost, drops all frames that wait."""
        if is_sticky(error):
            with self._changed:
                first, self.is_lost, self.is_open = not self.is_lost, True, False
                drop(self._waiting.clear(), DropReason.DEVICE_LOST)
                for model in self._dispatcher.all_models:
                    model.instance.device_lost, model.instance.failure = True, str(error)
                self._changed.notify_all()
            if not first:
                return
        elif self.is_lost:  # the error only follows from the loss
            return
        self._on_error(name, error)

    def report_loss(self, errors: Mapping[str, Exception]) -> None:
        """Reports those of the exceptions (by name) after which the device is lost. The caller handles the others."""
        for name, error in errors.items():
            if is_sticky(error):
                self.fail(name, error)

    @property
    def is_idle(self) -> bool:
        """True while no frame waits and no batch is in flight (lock held)."""
        return not self._waiting and not any(model.in_flight for model in self._dispatcher.all_models)
