"""The plans of one model that are in use: the plan for new batches, and earlier plans with batches in flight."""

from __future__ import annotations

import threading
from collections.abc import Callable

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.server.plan import Plan


class PlansInUse:
    """Keeps the plan for new batches, and each earlier plan until its last batch in flight has come back.

    Args:
        changed: the condition that guards the list of plans.
        released: called with the lease and outcome of each batch that ``collect`` finds.
    """

    def __init__(self, changed: threading.Condition, released: Callable[[Lease, Outcome], None]) -> None:
        self._changed = changed
        self._released = released
        self._plans: list[Plan] = []  # the last one is in force
        self._collecting = threading.Lock()
        self._is_closed = False

    @property
    def current(self) -> Plan:
        """The plan in force: new batches are computed with it. Call ``use`` first."""
        return self._plans[-1]

    def use(self, plan: Plan) -> None:
        """Puts a plan in force for new batches. Batches in flight keep their plans."""
        with self._changed:
            kept = self._plans[:-1] if self._plans and self.current.pool is plan.pool else self._plans
            self._plans = [*kept, plan]  # one assignment, because reports read the list without the lock

    def collect(self, now: float) -> None:
        """Takes back slots (see ``OwnedPool.collect``), and closes earlier plans that have no batch in flight.

        Calls ``released`` for each batch whose slot was taken back. Any thread may call this.

        Args:
            now: seconds of the steady clock.
        """
        with self._collecting:
            if self._is_closed:
                return
            with self._changed:
                plans = list(self._plans)
            for plan in plans:
                for lease, outcome in plan.pool.collect(now):
                    self._released(lease, outcome)
            with self._changed:
                empty = [plan for plan in self._plans[:-1] if not plan.pool.leases.used]
                self._plans = [plan for plan in self._plans if plan not in empty]
            for plan in empty:
                plan.close()

    def close(self) -> None:
        """Frees all slots. Call it when no batch is in flight."""
        with self._collecting:  # a transport may collect on a thread of its own
            self._is_closed = True
            for plan in self._plans:
                plan.close()
