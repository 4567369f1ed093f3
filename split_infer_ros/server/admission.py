"""Which frames of tenants are taken, and as what the others are counted."""

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
    """Takes frames of tenants between ``begin`` and ``end``, unless the device is lost; used from any thread.

    Args:
        changed: guards what is shared with other threads.
        tenants: those that run, by name.
        waiting: where frames wait for their turn.
        dispatcher: knows the models.
        on_error: takes the tenant's or the model's name and an exception that cost frames, or a notice.

    Attributes:
        is_lost: the device was lost, and all frames with it.
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
        self._accepting = False
        self.is_lost = False

    def begin(self) -> None:
        """Takes frames once unknown costs of models are measured, which it waits for."""
        with self._changed:
            self._changed.wait_for(lambda: self._dispatcher.settled or self.is_lost)
            self._accepting = not self.is_lost

    def end(self, drain_s: float) -> DropReason:
        """Takes no more frames, and lets those that came finish for up to ``drain_s`` seconds.

        Returns:
            The reason for which frames that still wait were dropped, and batches in flight are to be.
        """
        reason = DropReason.DEVICE_LOST if self.is_lost else DropReason.SHUTDOWN
        with self._changed:
            self._accepting = False
            self._changed.wait_for(self._is_idle, drain_s)
            drop(self._waiting.clear(), reason)
        return reason

    def submit(self, tenant: str, pixels: Pixels, origin: Origin, now: float) -> None:
        """Takes a frame of a tenant; never waits. Frames for a tenant that does not exist are not counted."""
        with self._changed:
            state = self._tenants.get(tenant)
            if state is None:
                return
            ticket = state.ledger.receive(now)
            if not self._accepting:
                ticket.drop(DropReason.DEVICE_LOST if self.is_lost else DropReason.INACTIVE)
            elif self._dispatcher.models[state.model].failed:
                ticket.drop(DropReason.BACKBONE_ERROR)
            else:
                frame = TenantFrame(pixels, origin, ticket, state)
                drop(self._waiting.add(frame, now, self._dispatcher.execution_s(state.model)), DropReason.OVERRUN)
                self._changed.notify_all()

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
                first, self.is_lost, self._accepting = not self.is_lost, True, False
                drop(self._waiting.clear(), DropReason.DEVICE_LOST)
                for model in self._dispatcher.all_models:
                    model.instance.device_lost = True
                self._changed.notify_all()
            if not first:
                return
        self._on_error(name, error)

    def report_loss(self, errors: Mapping[str, Exception]) -> None:
        """Reports those exceptions, by name, after which the device is lost; the caller handles the others."""
        for name, error in errors.items():
            if is_sticky(error):
                self.fail(name, error)

    def _is_idle(self) -> bool:
        return not self._waiting and not any(model.in_flight for model in self._dispatcher.all_models)
