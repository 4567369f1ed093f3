"""A frame that waits for its model, and the queue that orders such frames by virtual deadline."""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import Enum
from typing import overload


class LatePolicy(Enum):
    """What becomes of a frame that can no longer meet its deadline."""

    FINISH = "finish"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Request:
    """One frame of one tenant that waits for its model.

    Attributes:
        number: unique; ascends in the order of arrival.
        tenant: the name of the tenant that sent the frame.
        model: the key of the model that the frame waits for.
        arrival_s: when the frame came, in seconds of the steady clock.
        deadline_s: when the backbone should be done, in seconds of the steady clock; infinite without a deadline.
        virtual_deadline_s: the queue serves the earliest one first, and equal ones in the order of arrival.
        when_late: what becomes of the frame once it cannot meet its deadline.
    """

    number: int
    tenant: str
    model: str
    _: KW_ONLY
    arrival_s: float
    deadline_s: float = math.inf
    virtual_deadline_s: float = math.inf
    when_late: LatePolicy = LatePolicy.FINISH

    @property
    def order(self) -> tuple[float, int]:
        """The key by which the queue sorts requests."""
        return self.virtual_deadline_s, self.number


def virtual_deadline_s(arrival_s: float, patience_s: float, priority: int) -> float:
    """Returns the deadline by which a request is ordered: the earliest one is served first.

    This is the earliest deadline first of the co-optimisation paper (§IV-B), weighted by priority. Each step of
    priority halves the patience. The result stays finite, so no request starves: a request that arrives after the
    virtual deadline of another one is ordered behind it.

    Args:
        arrival_s: seconds of the steady clock.
        patience_s: seconds from the arrival to the deadline.
        priority: the tenant's; 0 is usual, and a negative priority lengthens the patience.
    """
    return arrival_s + math.ldexp(patience_s, -priority)


@dataclass
class RequestQueue(Sequence[Request]):
    """Waiting requests, ordered by virtual deadline; a tenant's requests stay in their order of arrival."""

    _waiting: list[Request] = field(default_factory=list)
    _latest_virtual_deadline_s: dict[str, float] = field(default_factory=dict)

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
        """Adds a request at its place in the order.

        A tenant whose patience was shortened does not overtake its own earlier frames. With n waiting requests this
        takes O(log n) comparisons and moves O(n) references.
        """
        latest_s = self._latest_virtual_deadline_s.get(request.tenant, -math.inf)
        deadline_s = max(request.virtual_deadline_s, latest_s)
        self._latest_virtual_deadline_s[request.tenant] = deadline_s
        if deadline_s != request.virtual_deadline_s:
            request = replace(request, virtual_deadline_s=deadline_s)
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.order)

    def remove(self, requests: Collection[Request]) -> None:
        """Removes waiting requests; looks only at the part of the queue from the first of them to the last."""
        if not requests:
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
        """Removes and returns all requests of a tenant, and forgets their order."""
        removed = [request for request in self._waiting if request.tenant == tenant]
        self.remove(removed)
        self._latest_virtual_deadline_s.pop(tenant, None)
        return removed
