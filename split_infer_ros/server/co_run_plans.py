"""A model's plan under other memory policies than its own, for batches that run beside another model's."""

from __future__ import annotations

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.server.plan import Plan


class CoRunPlans:
    """Plans that share slots and staging with the model's own plan; callers hold the pipeline's lock.

    Attributes:
        plans: those that co-runs have asked for, by their policies.
    """

    def __init__(self) -> None:
        self.plans: dict[Policy, Plan] = {}
        self._own: Plan | None = None

    @property
    def reason(self) -> str:
        """Text that a report adds to the reason of the model's policy; empty without plans for co-runs."""
        if not self.plans:
            return ""
        others = " and ".join(policy.value for policy in self.plans)
        return f"; also {others}, for batches whose neighbour in the queue calls for it (§IV-B)"

    def find(self, own: Plan, policy: Policy) -> Plan | None:
        """Returns the model's own plan under a policy; None if its memory does not serve that policy."""
        if own is not self._own:
            self._own, self.plans = own, {}
        if policy is own.pool.slots.policy:
            return own
        if policy not in self.plans:
            switched = own.under(policy)
            if switched is None:
                return None
            self.plans[policy] = switched
        return self.plans[policy]

    def clear(self) -> None:
        """Forgets all plans, because the model may have got another one, whose memory is elsewhere."""
        self._own, self.plans = None, {}
