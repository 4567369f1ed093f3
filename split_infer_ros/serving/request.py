"""A frame that waits for its model, and the order in which frames have their turn."""

from __future__ import annotations

import bisect
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

FINISH, DROP = "finish", "drop"  # what becomes of a frame that can no longer meet its deadline


@dataclass(frozen=True, slots=True)
class Request:
    """One frame of one tenant.

    Attributes:
        number: unique; ascending in the order of arrival.
        tenant: whose it is.
        model: that it waits for.
        arrival_s: when it came, of the steady clock.
        deadline_s: when its result should be out, of the steady clock; infinite where there is none.
        turn_s: it comes after requests whose turn is earlier, of equal ones after those that came earlier.
        when_late: ``finish`` or ``drop``.
    """

    number: int
    tenant: str
    model: str
    arrival_s: float
    deadline_s: float = math.inf
    turn_s: float = math.inf
    when_late: str = FINISH

    @property
    def order(self) -> tuple[float, int]:
        """By which requests are sorted."""
        return self.turn_s, self.number


def turn_s(arrival_s: float, patience_s: float, priority: int) -> float:
    """When a request's turn is: earliest deadline first (§IV-B of the co-optimisation paper), weighed by priority.

    A priority that is higher by one halves the patience. As it stays finite nobody starves: whatever comes after the
    turn of a request comes behind it.

    Args:
        arrival_s: of the steady clock.
        patience_s: from the arrival to the deadline.
        priority: of the tenant; 0 is usual, negative ones wait.
    """
    return arrival_s + math.ldexp(patience_s, -priority)


@dataclass
class RequestQueue(Sequence[Request]):
    """Requests that wait, in order; a tenant's own stay in the order in which they came."""

    _waiting: list[Request] = field(default_factory=list)
    _latest_turn_s: dict[str, float] = field(default_factory=dict)

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
        """A request came; it takes its place in n steps of memory, log n of comparison."""
        turn = max(request.turn_s, self._latest_turn_s.get(request.tenant, -math.inf))
        self._latest_turn_s[request.tenant] = turn
        if turn != request.turn_s:  # its tenant's patience was shortened: it does not overtake its own
            request = replace(request, turn_s=turn)
        bisect.insort(self._waiting, request, key=lambda waiting: waiting.order)

    def remove(self, requests: Collection[Request]) -> None:
        """They, which wait here, wait no more; takes a look at whatever lies between the first and the last of them."""
        if not requests:
            return
        going = {request.number for request in requests}
        first = min(request.order for request in requests)
        begin = end = bisect.bisect_left(self._waiting, first, key=lambda waiting: waiting.order)
        stay = []
        while going:
            request = self._waiting[end]
            end += 1
            if request.number in going:
                going.remove(request.number)
            else:
                stay.append(request)
        self._waiting[begin:end] = stay

    def forget(self, tenant: str) -> list[Request]:
        """The tenant is gone; returns what it had waiting."""
        mine = [request for request in self._waiting if request.tenant == tenant]
        self.remove(mine)
        self._latest_turn_s.pop(tenant, None)
        return mine
