"""A model's plans by other memory policies than its own, for batches that run beside another model's.

They take memory, so they are made only after a co-run asked for them.
"""

from __future__ import annotations

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.pipeline.plan import Plan


class CoRunPlans:
    """Plans by their policies; callers hold the pipeline's lock.

    Attributes:
        plans: those that were made.
    """

    def __init__(self) -> None:
        self.plans: dict[Policy, Plan] = {}
        self._wanted: set[Policy] = set()
        self._refused: set[Policy] = set()

    @property
    def reason(self) -> str:
        """Text that a report adds to the reason of the model's policy; empty without plans for co-runs."""
        if not self.plans:
            return ""
        others = " and ".join(policy.value for policy in self.plans)
        return f"; also {others}, for batches whose neighbour in the queue calls for it (§IV-B)"

    def want(self, policy: Policy) -> None:
        """Asks for a plan by that policy."""
        if policy not in self._refused:
            self._wanted.add(policy)

    def pick(self) -> Policy | None:
        """Returns a policy that was asked for, and whose plan is then ``put`` here."""
        return self._wanted.pop() if self._wanted else None

    def put(self, policy: Policy, plan: Plan | None) -> None:
        """Keeps a plan; None means that there is no memory, so that it is not asked for again."""
        if plan is None:
            self._refused.add(policy)
        else:
            self.plans[policy] = plan

    def clear(self) -> list[Plan]:
        """Forgets all plans and refusals, since free memory may differ now; returns the plans."""
        gone = list(self.plans.values())
        for held in (self.plans, self._wanted, self._refused):
            held.clear()
        return gone
