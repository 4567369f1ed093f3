"""A model's plan under other memory policies, for batches that run beside a batch of another model."""

from __future__ import annotations

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.server.plan import Plan


class CoRunPlans:
    """Plans that share slots and staging with the model's own plan. Callers hold the pipeline's lock.

    Attributes:
        plans: the plans that co-runs have asked for, by policy.
    """

    def __init__(self) -> None:
        self.plans: dict[Policy, Plan] = {}
        self._own: Plan | None = None

    @property
    def reason(self) -> str:
        """Text that a report appends to the reason for the model's policy; empty if there are no plans for co-runs."""
        if not self.plans:
            return ""
        others = " and ".join(policy.value for policy in self.plans)
        return f"; also {others}, for batches whose neighbour in the queue calls for it (§IV-B)"

    def find(self, own: Plan, policy: Policy) -> Plan | None:
        """Returns the model's own plan under a policy; None if the plan's memory does not support the policy."""
        if own is not self._own:
            self._own, self.plans = own, {}
        if policy is own.pool.slots.policy:
            return own
        if policy not in self.plans:
            switched = own.with_policy(policy)
            if switched is None:
                return None
            self.plans[policy] = switched
        return self.plans[policy]

    def clear(self) -> None:
        """Forgets all plans. Call it when the model may have a new plan, because that has other memory."""
        self._own, self.plans = None, {}
