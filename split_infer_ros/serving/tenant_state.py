"""A tenant as it runs, its frames, and those of them that wait for their turn."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from split_infer_ros.pipeline.frame import Frame
from split_infer_ros.pipeline.ledger import Ledger
from split_infer_ros.pipeline.report import PipelineMeters
from split_infer_ros.serving.request import Request, RequestQueue, virtual_deadline_s
from split_infer_ros.serving.tenant import Tenant


@dataclass(slots=True, eq=False)
class TenantState:
    """A tenant that runs.

    Attributes:
        tenant: what it asks for now.
        model: the key of its model.
        ledger, meters: of its own frames alone.
        waiting: how many of them wait.
    """

    tenant: Tenant
    model: str
    ledger: Ledger = field(default_factory=Ledger)
    meters: PipelineMeters = field(default_factory=PipelineMeters)
    waiting: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class TenantFrame(Frame):
    """A frame, and whose it is."""

    member: TenantState


def drop(frames: Iterable[TenantFrame], reason: str) -> None:
    """They end here, under that name."""
    for frame in frames:
        frame.ticket.drop(reason)


class WaitingFrames:
    """Requests in order, and the frames that they are for; whoever calls holds a lock.

    Args:
        most: of one tenant that may wait.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue = RequestQueue()
        self._frames: dict[int, TenantFrame] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, frame: TenantFrame, now: float, execution_s: float) -> list[TenantFrame]:
        """A frame comes; returns those of its tenant's that give way.

        Args:
            frame: that waits from now on.
            now: of the steady clock.
            execution_s: what an image takes its model, as far as that is known.
        """
        tenant = frame.member.tenant
        patience_s = tenant.deadline_s or execution_s
        request = Request(
            next(self._numbers),
            tenant.name,
            frame.member.model,
            arrival_s=now,
            deadline_s=now + tenant.deadline_s if tenant.deadline_s else math.inf,
            virtual_deadline_s=virtual_deadline_s(now, patience_s, tenant.priority),
            when_late=tenant.when_late,
        )
        self._queue.add(request)
        self._frames[request.number] = frame
        frame.member.waiting += 1
        return self._displace(frame.member)

    def limit(self, most: int) -> list[TenantFrame]:
        """From now on so many of each tenant; returns those that give way."""
        self._most = most
        members = list(dict.fromkeys(frame.member for frame in self._frames.values()))
        return [frame for member in members for frame in self._displace(member)]

    def of_models(self, models: Collection[str]) -> list[Request]:
        """What waits for one of these, in order."""
        return [request for request in self._queue if request.model in models]

    def image_bytes(self, requests: Iterable[Request]) -> int:
        """Of the frames that they are for, as they came."""
        return sum(self._frames[request.number].pixels.data.nbytes for request in requests)

    def take(self, requests: Iterable[Request]) -> list[TenantFrame]:
        """They wait no more."""
        requests = list(requests)
        self._queue.remove(requests)
        return self._pop(requests)

    def forget(self, tenant: str) -> list[TenantFrame]:
        """Nothing of that tenant's waits any more, and it may come again as another."""
        return self._pop(self._queue.remove_tenant(tenant))

    def clear(self) -> list[TenantFrame]:
        """Nothing waits any more."""
        return self.take(list(self._queue))

    def _displace(self, member: TenantState) -> list[TenantFrame]:
        """The oldest give way, and those behind them take their turns: who sends fast would else never have one."""
        surplus = member.waiting - self._most
        if surplus <= 0:
            return []
        requests = self._queue.remove_tenant(member.tenant.name)
        for place, request in zip(requests, requests[surplus:], strict=False):
            self._queue.add(replace(request, virtual_deadline_s=place.virtual_deadline_s))
        return self._pop(requests[:surplus])

    def _pop(self, requests: Sequence[Request]) -> list[TenantFrame]:
        frames = [self._frames.pop(request.number) for request in requests]
        for frame in frames:
            frame.member.waiting -= 1
        return frames
