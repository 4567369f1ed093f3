"""A running tenant, its frames, and the frames of all tenants that wait for their turn."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from split_infer_ros.drop_reason import DropReason
from split_infer_ros.server.account import Account
from split_infer_ros.server.frame import Frame
from split_infer_ros.server.schedule.request import Request, RequestQueue, virtual_deadline_s
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.server.tenant import Tenant

_number = attrgetter("number")


@dataclass(slots=True, eq=False, kw_only=True)
class TenantState(Account):
    """A tenant that runs, and the account of its own frames.

    Attributes:
        tenant: what the tenant asks for now.
        model: the key of its model.
        waiting: how many of its frames wait.
        turns: its cameras in the order of their turns. A camera without waiting frames keeps its turn.
    """

    tenant: Tenant
    model: str
    waiting: int = 0
    turns: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class TenantFrame(Frame):
    """A frame of a tenant.

    Attributes:
        account: the tenant's state, which counts the frame and its times.
    """

    account: TenantState


def drop(frames: Iterable[Frame], reason: DropReason) -> None:
    """Settles each of the frames as dropped for a reason."""
    for frame in frames:
        frame.drop(reason)


class WaitingFrames:
    """The requests that wait, in order, and their frames. Callers hold the server's lock.

    A tenant is full if ``max_waiting`` of its frames wait. With ``DropPolicy.LATEST``, each further frame displaces a
    frame: the oldest one of that camera of the tenant which has most frames waiting. So a camera that sends fast
    displaces only its own frames. The newest frame of each camera stays. With ``DropPolicy.BLOCK``, no frame is
    displaced, and senders wait while the tenant is full.

    Args:
        max_waiting: how many frames of one tenant may wait.
        drop_policy: what happens when a tenant has more frames.

    Attributes:
        is_draining: whether no more frames will come, so that batches that are not full need not wait.
    """

    def __init__(self, max_waiting: int, drop_policy: DropPolicy = DropPolicy.LATEST) -> None:
        self.is_draining = False
        self._max_waiting = max_waiting
        self._drop_policy = drop_policy
        self._queue = RequestQueue()
        self._frames: dict[int, TenantFrame] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def blocks(self) -> bool:
        """Whether senders wait when a tenant is full. If not, frames are displaced."""
        return self._drop_policy is DropPolicy.BLOCK

    def is_full(self, tenant: TenantState) -> bool:
        """Returns whether the tenant's senders must wait."""
        return self.blocks and tenant.waiting >= self._max_waiting

    def add(self, frame: TenantFrame, now: float, execution_s: float) -> list[TenantFrame]:
        """Adds a frame. Returns the older frames of its tenant that it displaces; the caller drops them.

        Args:
            frame: the frame that waits from now on.
            now: seconds of the steady clock.
            execution_s: seconds that the model takes for one image; 0 if unknown.
        """
        tenant = frame.account.tenant
        patience_s = tenant.deadline_s or execution_s
        request = Request(
            next(self._numbers),
            tenant.name,
            frame.account.model,
            arrival_s=now,
            camera=frame.origin.source,
            deadline_s=now + tenant.deadline_s if tenant.deadline_s else math.inf,
            virtual_deadline_s=virtual_deadline_s(now, patience_s, tenant.priority),
            when_late=tenant.when_late,
        )
        self._queue.add(request)
        self._frames[request.number] = frame
        frame.account.waiting += 1
        frame.account.turns.setdefault(request.camera)
        displaced = self._displace(frame.account)
        if len(frame.account.turns) > 1:
            self._queue.take_turns(tenant.name, list(frame.account.turns))
        return displaced

    def configure(self, max_waiting: int, drop_policy: DropPolicy = DropPolicy.LATEST) -> list[TenantFrame]:
        """Changes the limit and the drop policy. Returns the waiting frames beyond the limit; the caller drops them."""
        self._max_waiting, self._drop_policy = max_waiting, drop_policy
        tenants = list(dict.fromkeys(frame.account for frame in self._frames.values()))
        return [frame for tenant_state in tenants for frame in self._displace(tenant_state)]

    def of_models(self, models: Collection[str]) -> list[Request]:
        """Returns the requests for these models, in order."""
        if not models:
            return []
        return [request for request in self._queue if request.model in models]

    def image_bytes(self, requests: Iterable[Request]) -> int:
        """Returns the bytes of what the requests' frames hold, in the form in which it came."""
        return sum(self._frames[request.number].payload.nbytes for request in requests)

    def take(self, requests: Sequence[Request]) -> list[TenantFrame]:
        """Removes requests from the queue. Returns their frames in the order of arrival.

        The cameras of these frames have their next turn after all other cameras of their tenants.
        """
        self._queue.remove(requests)
        frames = self._pop(sorted(requests, key=_number) if len(requests) > 1 else requests)
        for frame in frames:
            turns = frame.account.turns
            if len(turns) > 1:  # moves the frame's camera behind all others
                turns.pop(frame.origin.source, None)
                turns[frame.origin.source] = None
        return frames

    def forget(self, tenant: str) -> list[TenantFrame]:
        """Removes all requests of a tenant. Returns their frames."""
        return self._pop(self._queue.remove_tenant(tenant))

    def clear(self) -> list[TenantFrame]:
        """Removes all requests. Returns their frames."""
        return self.take(list(self._queue))

    def _displace(self, tenant_state: TenantState) -> list[TenantFrame]:
        """Removes and returns the tenant's frames beyond ``max_waiting``."""
        displaced: list[Request] = []
        while self._drop_policy is DropPolicy.LATEST and tenant_state.waiting > self._max_waiting + len(displaced):
            name = tenant_state.tenant.name
            counts = Counter(request.source for request in self._queue if request.tenant == name)
            source, count = counts.most_common(1)[0]  # if several cameras have the most, the first in order
            if count == 1:
                break
            displaced.append(self._queue.remove_oldest(source))
        return self._pop(displaced)

    def _pop(self, requests: Sequence[Request]) -> list[TenantFrame]:
        frames = [self._frames.pop(request.number) for request in requests]
        for frame in frames:
            frame.account.waiting -= 1
        return frames
