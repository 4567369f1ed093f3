"""Accepts the frames of tenants. A frame that is not accepted counts as dropped, for a named reason."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import FrameError
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.server.frame import Origin, Payload
from split_infer_ros.server.guarded import guarded
from split_infer_ros.server.served_models import ServedModels
from split_infer_ros.server.tenant_state import TenantFrame, TenantState, WaitingFrames, drop


class Admission:
    """Accepts frames of tenants between ``begin`` and ``end``. Any thread may use it.

    If the GPU is lost, all waiting frames are dropped, and no frame is accepted any more.

    Args:
        changed: the condition that guards state shared with other threads.
        work: has the same lock; notified when a frame comes.
        tenants: the tenants that run, by name.
        waiting: holds the frames that wait for their turn.
        models: the models that are served.
        on_error: called with the name of a tenant or model and an exception: an error that cost frames, or a
            ``Notice``.

    Attributes:
        is_open: whether frames are accepted.
        is_lost: whether the GPU is lost: this process cannot use it any more (``faults.is_sticky``).
    """

    def __init__(
        self,
        changed: threading.Condition,
        work: threading.Condition,
        tenants: Mapping[str, TenantState],
        waiting: WaitingFrames,
        models: ServedModels,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._changed = changed
        self._work = work
        self._tenants = tenants
        self._waiting = waiting
        self._models = models
        self._on_error = guarded(on_error)
        self.is_open = False
        self.is_lost = False

    def intake(self, tenant: str) -> Intake:
        """Returns an intake for frames of the tenant with this name. Without such a tenant, it ignores frames."""
        return Intake(
            tenant,
            self,
            changed=self._changed,
            work=self._work,
            tenants=self._tenants,
            waiting=self._waiting,
            models=self._models,
        )

    def begin(self) -> None:
        """Accepts frames from now on, unless the device is lost."""
        with self._changed:
            self._waiting.is_draining = False
            self.is_open = not self.is_lost

    def end(self, drain_s: float) -> DropReason:
        """Accepts no more frames. Waits up to ``drain_s`` seconds for accepted frames, then drops those not in a batch.

        Returns:
            The drop reason of these frames. The caller drops the batches that are still in flight for this reason, too.
        """
        with self._changed:
            self.is_open, self._waiting.is_draining = False, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.is_idle, drain_s)
            reason = DropReason.DEVICE_LOST if self.is_lost else DropReason.SHUTDOWN  # it may be lost meanwhile
            drop(self._waiting.clear(), reason)
        return reason

    def fail(self, name: str, error: Exception) -> None:
        """Reports an exception. If it means that the device is lost, drops all waiting frames and accepts no more.

        After the loss, no other exception is reported, because the loss has caused it.

        Args:
            name: the name of the tenant or model to which the exception belongs.
            error: the exception.
        """
        if is_sticky(error):
            with self._changed:
                first, self.is_lost, self.is_open = not self.is_lost, True, False
                drop(self._waiting.clear(), DropReason.DEVICE_LOST)
                for model in self._models.all:
                    model.instance.device_lost, model.instance.failure = True, str(error)
                self._changed.notify_all()
            if not first:
                return
        elif self.is_lost:  # the error only follows from the loss
            return
        self._on_error(name, error)

    def report_loss(self, errors: Mapping[str, Exception]) -> None:
        """Calls ``fail`` with each exception that means that the device is lost. The caller handles the others.

        Args:
            errors: the exceptions, by the name with which ``fail`` reports them.
        """
        for name, error in errors.items():
            if is_sticky(error):
                self.fail(name, error)

    @property
    def is_idle(self) -> bool:
        """True while no frame waits and no batch is in flight (lock held)."""
        return not self._waiting and not any(model.in_flight for model in self._models.all)


class Intake:
    """Accepts the frames of one tenant. Any thread may use it.

    The tenant may be removed and added again. While there is no tenant of that name, its frames are not even counted.

    Args:
        tenant: the name of the tenant.
        admission: says whether frames are accepted.
        changed: the condition that guards state shared with other threads.
        work: has the same lock; notified when a frame comes.
        tenants: the tenants that run, by name.
        waiting: gets the accepted frames.
        models: the models that are served.
    """

    def __init__(
        self,
        tenant: str,
        admission: Admission,
        *,
        changed: threading.Condition,
        work: threading.Condition,
        tenants: Mapping[str, TenantState],
        waiting: WaitingFrames,
        models: ServedModels,
    ) -> None:
        self._tenant = tenant
        self._admission = admission
        self._changed = changed
        self._work = work
        self._tenants = tenants
        self._waiting = waiting
        self._models = models

    @property
    def is_full(self) -> bool:
        """Whether the tenant's senders must wait. Always False without drop policy ``block``. Takes no lock."""
        state = self._tenants.get(self._tenant)
        return state is not None and self._admission.is_open and self._waiting.is_full(state)

    def wait_for_room(self, timeout_s: float) -> bool:
        """Waits on the sender's thread while the intake is full, up to ``timeout_s``. Returns whether there is room."""
        if not self.is_full:  # usual, and asked for each image
            return True
        with self._changed:
            return self._changed.wait_for(lambda: not self.is_full, timeout_s)

    def check(self, payload: Payload) -> None:
        """Has the tenant's model check a frame that came. Call it before ``submit``. Takes no lock.

        Raises:
            FrameError: the model cannot compute the frame; see ``refuse``.
        """
        state = self._tenants.get(self._tenant)
        model = self._models.by_key.get(state.model) if state is not None else None
        check = model.instance.model.entry.check if model is not None and model.takes(payload) else None
        if check is not None:
            check(payload)

    def submit(self, payload: Payload, origin: Origin, now: float) -> None:
        """Accepts a frame, or counts it as dropped. Never waits until there is room.

        Args:
            payload: what the frame holds: an image, or points.
            origin: the frame's header, source and size.
            now: when the frame came in, in seconds of the steady clock.
        """
        with self._changed:
            state = self._tenants.get(self._tenant)
            if state is None:
                return
            ticket = state.ledger.receive(now)
            if not self._admission.is_open:
                ticket.drop(DropReason.DEVICE_LOST if self._admission.is_lost else DropReason.INACTIVE)
            elif self._models.by_key[state.model].failed:
                ticket.drop(DropReason.BACKBONE_ERROR)
            elif not self._models.by_key[state.model].takes(payload):  # it came while the tenant got another model
                ticket.drop(DropReason.REMOVED)
            else:
                frame = TenantFrame(payload, origin, ticket, state)
                drop(self._waiting.add(frame, now, self._models.execution_s(state.model)), DropReason.OVERRUN)
                self._work.notify()
                self._changed.notify_all()

    def refuse(self, error: FrameError, now: float) -> None:
        """Counts a frame as dropped because its message cannot be read. ``error`` has the drop reason."""
        with self._changed:
            if self._tenant in self._tenants:
                self._tenants[self._tenant].ledger.receive(now).drop(error.reason)

    def missed(self, count: int, reason: DropReason) -> None:
        """Counts frames that a camera sent and that never arrived. Each counts as received and as dropped."""
        with self._changed:
            if self._tenant in self._tenants:
                self._tenants[self._tenant].ledger.missed(count, reason)
