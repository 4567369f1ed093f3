"""What a model needs for co-runs: its batch runs beside a batch of another model, maybe under another memory policy.

The section and the equation are those of the co-optimisation paper.
"""

from __future__ import annotations

from collections.abc import Collection

from split_infer_ros.buffers.policy import AUTO, Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Task, batch_task
from split_infer_ros.memory_cost.traffic import kernels_outside
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.plan import Plan


class CoRuns:
    """Makes the tasks of the overhead model, and the plans, that a model needs for co-runs.

    The plans share slots and staging buffers with the model's own plan. Callers of all but ``reason`` hold the server's
    lock.

    Args:
        instance: the model's instance.

    Attributes:
        plans: the plans that co-runs have asked for, by memory policy. The model's own plan is not among them.
    """

    def __init__(self, instance: ModelInstance) -> None:
        self.plans: dict[Policy, Plan] = {}
        self._instance = instance
        self._own: Plan | None = None

    @property
    def inputs(self) -> tuple[MachineConstants, Collection[Policy]] | None:
        """The machine's constants and the policies that the GPU allows. None unless ``auto`` chooses a GPU's policy."""
        return self._instance.advisor.assignment_inputs if self._is_auto else None

    @property
    def breaks_guideline(self) -> bool:
        """True if the memory policy was chosen because other models run, and too few of these are left (Eq. 11)."""
        return self._is_auto and self._instance.advisor.breaks_guideline

    @property
    def reason(self) -> str:
        """The text that a report appends to ``memory_reason``; empty if there are no plans for co-runs."""
        policies = tuple(self.plans)  # at once, because reports do not hold the lock
        if not policies:
            return ""
        others = " and ".join(policy.value for policy in policies)
        return f"; also {others}, for batches whose neighbour in the queue calls for it (§IV-B)"

    def task(self, count: int, image_bytes: int, execution_s: float) -> Task:
        """Returns what a batch does with memory, as the overhead model takes it.

        Args:
            count: number of images in the batch.
            image_bytes: bytes of all its images as they came in.
            execution_s: seconds in which the batch is computed.
        """
        model, split_point = self._instance.plan.model, self._instance.plan.split_point
        return batch_task(
            self._instance.key,
            image_bytes=image_bytes,
            feature_bytes=count * split_point.bytes_per_image,
            kernels=kernels_outside(model.kernels_before(split_point.name)),
            execution_ms=1e3 * execution_s,
            feature_tensors=len(split_point.tensors),
        )

    def plan_by(self, policy: Policy) -> Plan | None:
        """Returns the model's plan under a memory policy, and makes it if necessary.

        Returns None if the memory of the model's own plan does not support the policy.
        """
        own = self._instance.plan
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
        """Forgets all plans. Call it when the model may have got a new plan, because a new plan has other memory."""
        self._own, self.plans = None, {}

    @property
    def _is_auto(self) -> bool:
        return self._instance.plan.settings.memory_policy == AUTO
