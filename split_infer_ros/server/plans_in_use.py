"""The plans of one model that are in use: the plan for new batches, earlier plans, and plans that a contest holds."""

from __future__ import annotations

import threading
from collections.abc import Callable

from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.server.plan import Plan


class PlansInUse:
    """Keeps the plan for new batches, and each earlier plan until its last batch in flight has come back.

    A plan that is held stays open even without batches, so that it can be put in force again. Plans that share a pool
    are versions of each other: the latest one stands for all of them.

    Args:
        changed: the condition that guards the list of plans.
        released: called with the lease and outcome of each batch that ``collect`` finds.
    """

    def __init__(self, changed: threading.Condition, released: Callable[[Lease, Outcome], None]) -> None:
        self._changed = changed
        self._released = released
        self._plans: list[Plan] = []  # the last one is in force
        self._held: list[Plan] = []
        self._collecting = threading.Lock()
        self._is_closed = False

    @property
    def current(self) -> Plan:
        """The plan in force: new batches are computed with it. Call ``use`` first."""
        return self._plans[-1]

    @property
    def is_holding(self) -> bool:
        """Whether a plan is held, because a contest is under way."""
        return bool(self._held)

    def use(self, plan: Plan) -> None:
        """Puts a plan in force for new batches. Batches in flight keep their plans."""
        with self._changed:
            # one assignment, because reports read the list without the lock
            self._plans = [*(each for each in self._plans if each.pool is not plan.pool), plan]

    def hold(self, plan: Plan) -> None:
        """Keeps a plan open until ``release``, whether it is in force or not."""
        with self._changed:
            self._held.append(plan)

    def release(self, plan: Plan) -> None:
        """Ends a ``hold``. The plan is closed once it is not in force and has no batch in flight."""
        with self._collecting:
            with self._changed:
                self._held.remove(plan)
                is_left = not self._is_closed and not _has_pool_of(plan, [*self._plans, *self._held])
            if is_left:  # it never computed a batch, because plans that did are in the list
                plan.close()

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
                earlier = [plan for plan in self._plans[:-1] if not _has_pool_of(plan, self._held)]
                empty = [plan for plan in earlier if not plan.pool.leases.used]
                self._plans = [plan for plan in self._plans if plan not in empty]
            for plan in empty:
                plan.close()

    def close(self) -> None:
        """Frees all slots, those of held plans as well. Call it when no batch is in flight."""
        with self._collecting:  # a transport may collect on a thread of its own
            self._is_closed = True
            for plan in {id(plan.pool): plan for plan in [*self._held, *self._plans]}.values():
                plan.close()


def _has_pool_of(plan: Plan, others: list[Plan]) -> bool:
    return any(other.pool is plan.pool for other in others)
