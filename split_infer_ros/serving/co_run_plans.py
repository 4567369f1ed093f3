"""Slots and staging of a model by other policies than its own, for batches that run beside another model's.

They take memory, so there are none until a pair called for them.
"""

from __future__ import annotations

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.pipeline.plan import Plan


class CoRunPlans:
    """Plans by their policies; whoever calls holds the pipeline's lock.

    Attributes:
        plans: those that there are.
    """

    def __init__(self) -> None:
        self.plans: dict[Policy, Plan] = {}
        self._wanted: set[Policy] = set()
        self._refused: set[Policy] = set()

    @property
    def reason(self) -> str:
        """What a report adds to why the model's memory is what it is; nothing where there are no others."""
        if not self.plans:
            return ""
        others = " and ".join(policy.value for policy in self.plans)
        return f"; also {others}, for batches whose neighbour in the queue calls for it (§IV-B)"

    def want(self, policy: Policy) -> None:
        """A pair would have called for it."""
        if policy not in self._refused:
            self._wanted.add(policy)

    def pick(self) -> Policy | None:
        """One that is wanted, and for which a plan is to be put here."""
        return self._wanted.pop() if self._wanted else None

    def put(self, policy: Policy, plan: Plan | None) -> None:
        """The plan; None: there is no memory for one, and it is not wanted again."""
        if plan is None:
            self._refused.add(policy)
        else:
            self.plans[policy] = plan

    def clear(self) -> list[Plan]:
        """Begin anew, as there may be more memory or less; returns the plans that there were."""
        gone = list(self.plans.values())
        for held in (self.plans, self._wanted, self._refused):
            held.clear()
        return gone
