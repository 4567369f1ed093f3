"""A running tenant, its frames, and the frames of all tenants that wait for their turn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.account import Account
from split_infer_ros.server.frame import Frame
from split_infer_ros.server.schedule.request import Request, RequestQueue, virtual_deadline_s
from split_infer_ros.server.tenant import Tenant


@dataclass(slots=True, eq=False, kw_only=True)
class TenantState(Account):
    """A tenant that runs, and the account of its own frames.

    Attributes:
        tenant: what it asks for now.
        model: the key of its model.
        waiting: how many of its frames wait.
    """

    tenant: Tenant
    model: str
    waiting: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TenantFrame(Frame):
    """A frame of a tenant, in whose account it is."""

    account: TenantState


def drop(frames: Iterable[Frame], reason: DropReason) -> None:
    """Drops frames for that reason."""
    for frame in frames:
        frame.drop(reason)


class WaitingFrames:
    """Requests in order, and their frames; callers hold a lock.

    Args:
        max_waiting: how many frames of one tenant may wait.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._queue = RequestQueue()
        self._frames: dict[int, TenantFrame] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, frame: TenantFrame, now: float, execution_s: float) -> list[TenantFrame]:
        """Adds a frame; returns older frames of its tenant that it displaces.

        Args:
            frame: waits from now on.
            now: seconds of the steady clock.
            execution_s: what one image takes its model, 0 if unknown.
        """
        tenant = frame.account.tenant
        patience_s = tenant.deadline_s or execution_s
        request = Request(
            next(self._numbers),
            tenant.name,
            frame.account.model,
            arrival_s=now,
            deadline_s=now + tenant.deadline_s if tenant.deadline_s else math.inf,
            virtual_deadline_s=virtual_deadline_s(now, patience_s, tenant.priority),
            when_late=tenant.when_late,
        )
        self._queue.add(request)
        self._frames[request.number] = frame
        frame.account.waiting += 1
        return self._displace(frame.account)

    def set_max_waiting(self, max_waiting: int) -> list[TenantFrame]:
        """Lets so many frames of each tenant wait; returns those that are displaced."""
        self._max_waiting = max_waiting
        tenants = list(dict.fromkeys(frame.account for frame in self._frames.values()))
        return [frame for tenant_state in tenants for frame in self._displace(tenant_state)]

    def of_models(self, models: Collection[str]) -> list[Request]:
        """Requests for one of these models, in order."""
        return [request for request in self._queue if request.model in models]

    def image_bytes(self, requests: Iterable[Request]) -> int:
        """Bytes of the requests' images, as they came."""
        return sum(self._frames[request.number].pixels.data.nbytes for request in requests)

    def take(self, requests: Iterable[Request]) -> list[TenantFrame]:
        """Removes requests that get their turn; returns their frames."""
        requests = list(requests)
        self._queue.remove(requests)
        return self._pop(requests)

    def forget(self, tenant: str) -> list[TenantFrame]:
        """Removes all requests of a tenant; returns their frames."""
        return self._pop(self._queue.remove_tenant(tenant))

    def clear(self) -> list[TenantFrame]:
        """Removes all requests; returns their frames."""
        return self.take(list(self._queue))

    def _displace(self, tenant_state: TenantState) -> list[TenantFrame]:
        """Displaces the oldest frames; those behind take over their turns.

        Otherwise a tenant that sends fast would never get a turn.
        """
        surplus = tenant_state.waiting - self._max_waiting
        if surplus <= 0:
            return []
        requests = self._queue.remove_tenant(tenant_state.tenant.name)
        for place, request in zip(requests, requests[surplus:], strict=False):
            self._queue.add(replace(request, virtual_deadline_s=place.virtual_deadline_s))
        return self._pop(requests[:surplus])

    def _pop(self, requests: Sequence[Request]) -> list[TenantFrame]:
        frames = [self._frames.pop(request.number) for request in requests]
        for frame in frames:
            frame.account.waiting -= 1
        return frames
