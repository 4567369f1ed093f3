"""Requests (frames that wait for their model), and the queue that orders them by virtual deadline."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from typing import overload


class LatePolicy(Enum):
    """What happens to a frame that can no longer meet its deadline."""

    FINISH = "finish"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Request:
    """One frame of one tenant that waits for its model.

    Attributes:
        number: a unique number that ascends in the order of arrival.
        tenant: the name of the tenant that sent the frame.
        model: the key of the model that the frame waits for.
        arrival_s: when the frame came, in seconds of the steady clock.
        camera: which of the tenant's cameras sent it.
        deadline_s: when the backbone should be done, in seconds of the steady clock; infinite without a deadline.
        virtual_deadline_s: the time by which the queue orders requests, in seconds of the steady clock. The request
            with the earliest time is served first. The function ``virtual_deadline_s`` computes it.
        when_late: what happens to the frame once it cannot meet its deadline.
        waits_since_s: since when a frame of its source waits in this place; a newer frame may have replaced it. None:
            since the arrival.
        turn: orders requests with the same virtual deadline; see ``RequestQueue.take_turns``. Requests with the same
            turn as well are served in the order of arrival.
    """

    number: int
    tenant: str
    model: str
    _: KW_ONLY
    arrival_s: float
    camera: str = ""
    deadline_s: float = math.inf
    virtual_deadline_s: float = math.inf
    when_late: LatePolicy = LatePolicy.FINISH
    waits_since_s: float | None = None
    turn: int = 0

    @property
    def source(self) -> tuple[str, str]:
        """The source of the frame: its tenant and camera. No frame overtakes an earlier frame of the same source."""
        return self.tenant, self.camera

    @property
    def waits_from_s(self) -> float:
        """Since when its place in the queue is taken, in seconds of the steady clock."""
        return self.arrival_s if self.waits_since_s is None else self.waits_since_s

    @property
    def order(self) -> tuple[float, int, int]:
        """The key by which the queue sorts requests."""
        return self.virtual_deadline_s, self.turn, self.number


def virtual_deadline_s(arrival_s: float, patience_s: float, priority: int) -> float:
    """Returns the virtual deadline of a request. The queue serves the earliest virtual deadline first.

    This is the rule "earliest deadline first" of the co-optimisation paper (§IV-B), weighted by priority. Each step of
    priority halves the patience. The result is finite, so no request starves: a request that arrives after the virtual
    deadline of another request is served after that request.

    Args:
        arrival_s: when the request arrived, in seconds of the steady clock.
        patience_s: seconds from the arrival to the deadline.
        priority: the tenant's priority. 0 leaves the patience as it is. Each step below 0 doubles it.
    """
    return arrival_s + math.ldexp(patience_s, -priority)


@dataclass
class RequestQueue(Sequence[Request]):
    """The requests that wait. The one with the earliest virtual deadline comes first (``Request.virtual_deadline_s``).

    The requests of one camera of a tenant stay in their order of arrival.
    """

    _waiting: list[Request] = field(default_factory=list)
    _latest_virtual_deadline_s: dict[tuple[str, str], float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._waiting)

    @overload
    def __getitem__(self, index: int) -> Request: ...
    @overload
    def __getitem__(self, index: slice) -> list[Request]: ...
    def __getitem__(self, index: int | slice) -> Request | list[Request]:
        return self._waiting[index]

    def __iter__(self) -> Iterator[Request]:
        return iter(self._waiting)

    def add(self, request: Request) -> None:
        """Adds a request at its place in the queue.

        A request never overtakes an earlier one of its source, even if its tenant's patience was shortened meanwhile.
        With n waiting requests, this takes O(log n) comparisons and moves O(n) references.
        """
        source = request.source
        latest_s = self._latest_virtual_deadline_s.get(source, -math.inf)
        deadline_s = max(request.virtual_deadline_s, latest_s)
        self._latest_virtual_deadline_s[source] = deadline_s
        if deadline_s != request.virtual_deadline_s:
            request = replace(request, virtual_deadline_s=deadline_s)
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.order)

    def remove(self, requests: Collection[Request]) -> None:
        """Removes waiting requests. Searches the queue only from the first of these requests to the last one."""
        if not requests:
            return
        if self._waiting[: len(requests)] == list(requests):  # usual: they are the first in the queue
            del self._waiting[: len(requests)]
            return
        numbers = {request.number for request in requests}
        first = min(request.order for request in requests)
        begin = end = bisect.bisect_left(self._waiting, first, key=lambda waiting: waiting.order)
        remaining = []
        while numbers:
            request = self._waiting[end]
            end += 1
            if request.number in numbers:
                numbers.remove(request.number)
            else:
                remaining.append(request)
        self._waiting[begin:end] = remaining

    def remove_tenant(self, tenant: str) -> list[Request]:
        """Removes and returns all requests of a tenant. They no longer delay later requests of the tenant."""
        removed = [request for request in self._waiting if request.tenant == tenant]
        self.remove(removed)
        for source in [source for source in self._latest_virtual_deadline_s if source[0] == tenant]:
            del self._latest_virtual_deadline_s[source]
        return removed

    def remove_oldest(self, source: tuple[str, str]) -> Request:
        """Removes and returns the oldest request of a source.

        Each later request of the source moves up to the place of the one before it, and waits since that one waits. If
        requests kept their places, a source that sends fast would never get a turn. If waiting began anew, requests
        that wait for others would wait for ever.
        """
        places = [request for request in self._waiting if request.source == source]
        requests = sorted(places, key=lambda request: request.number)
        self.remove(requests)
        del self._latest_virtual_deadline_s[source]
        for place, request in zip(places, requests[1:], strict=False):
            deadline_s, since_s = place.virtual_deadline_s, place.waits_from_s
            self.add(replace(request, virtual_deadline_s=deadline_s, turn=place.turn, waits_since_s=since_s))
        return requests[0]

    def take_turns(self, tenant: str, cameras: Sequence[str]) -> None:
        """Gives the places of a tenant's requests to its cameras in turns: one request of each camera, then the next.

        If several cameras send at the same moments, the order of arrival would always favour the first of them.

        Args:
            tenant: the name of the tenant. Its requests change places only with each other.
            cameras: all cameras of the tenant, in the order of their turns. The first one has the next turn.
        """
        places = [request for request in self._waiting if request.tenant == tenant]
        by_age = sorted(places, key=lambda request: request.number)
        own = {camera: [request for request in by_age if request.camera == camera] for camera in cameras}
        rounds = itertools.zip_longest(*own.values())
        order = [request for each in rounds for request in each if request is not None]
        self.remove_tenant(tenant)
        for turn, (place, request) in enumerate(zip(places, order, strict=True)):
            self.add(replace(request, virtual_deadline_s=place.virtual_deadline_s, turn=turn))
