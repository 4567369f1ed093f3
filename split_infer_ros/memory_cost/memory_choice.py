"""Chooses the memory policy of a plan: the policy that the user named, or for ``auto`` the best one on this machine.

For ``auto``, the overhead model predicts the best policy, and a short trial confirms it. If the trial does not confirm
it, the fastest policy of the trial is chosen. The model may also choose a slower policy with less memory, if other
pipelines of this process overlap its extra cost. Such a choice needs no confirmation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.policy import AUTO, POLICIES, DeviceAttributes, Policy, find_policy, legal_policies
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.assignment import assign, max_switched_kernels
from split_infer_ros.memory_cost.choose import choose, describe
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.machine import calibrate_machine
from split_infer_ros.memory_cost.policy_trial import Trial, time_policies
from split_infer_ros.memory_cost.task import Task, batch_task, feature_task
from split_infer_ros.memory_cost.traffic import KernelTraffic, kernels_within
from split_infer_ros.runtime.device import Device

TOLERANCE = 0.03  # confirmed: at most this share slower than the fastest policy in the trial

PolicyTrial = Callable[[Sequence[Policy], Layout, Trial], Mapping[Policy, float]]
ReadKernels = Callable[[], Sequence[KernelTraffic]]


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """The memory policy chosen for a plan.

    Attributes:
        policy: the policy of features and staging buffers.
        reason: a phrase that says why the policy was chosen.
        covers_model: whether weights and activations have the policy too, as in the paper. That is so for a policy that
            the user named, on a GPU that shares its memory with the CPU. Other GPUs would read weights over their bus,
            and ``auto`` compares features only.
        switchable: whether single batches may use the memory under another policy.
    """

    policy: Policy
    reason: str
    covers_model: bool = False
    switchable: bool = False


class MemoryAdvisor:
    """Chooses memory policies for one pipeline on one device. Times the policies once for each slot size.

    Args:
        device: the device on which the backbone runs.
        database: keeps the machine's constants. None means the user's own database.
        trial: times policies with slots of a layout; returns the seconds of each policy. None means ``time_policies``.
        switches: whether single batches may have another policy than the one that ``auto`` chose.
    """

    def __init__(
        self,
        device: Device,
        database: Database | None = None,
        trial: PolicyTrial | None = None,
        switches: bool = False,
    ) -> None:
        self._switches = switches
        self._device = device
        self._database = database
        self._trial = trial or time_policies
        self._constants: MachineConstants | None = None
        self._trial_times: dict[tuple[int, bool], Mapping[Policy, float]] = {}
        self._switched: list[tuple[Task, Policy]] = []  # from D, by the guidelines

    def choose(self, name: str, layout: Layout, shared: bool, kernels: ReadKernels = tuple) -> MemoryChoice:
        """Returns the policy for slots of a layout, and why it was chosen.

        Args:
            name: ``device``, ``managed``, ``pinned`` or ``auto``.
            layout: the layout of a slot.
            shared: whether another process maps the slots as well.
            kernels: returns the traffic of the backbone's kernels. It is called only for ``auto`` on a GPU, because a
                call takes a moment.

        Raises:
            ConfigurationError: no policy has that name, this GPU does not allow it, or the GPU has no room for a slot.
        """
        attributes = self._attributes()
        if name != AUTO:
            policy = find_policy(name, attributes, shared)
            if attributes is not None:
                return MemoryChoice(policy, "as asked for", covers_model=attributes.integrated)
        if attributes is None:
            return MemoryChoice(Policy.HOST, "the backbone runs on the CPU")
        choice = self._find_best(_task_of(layout, kernels), layout, legal_policies(attributes, shared), shared=shared)
        if not attributes.integrated:
            return choice
        return replace(choice, reason=f"{choice.reason}; with weights and activations: {self._whole(layout, kernels)}")

    @property
    def assignment_inputs(self) -> tuple[MachineConstants, Sequence[Policy]] | None:
        """The machine's constants, and the policies that are legal for memory that only this process uses.

        None until ``choose`` was called with ``auto`` for a GPU.
        """
        attributes = self._attributes()
        return None if self._constants is None or attributes is None else (self._constants, legal_policies(attributes))

    def note_in_use(self, layout: Layout, policy: Policy, kernels: ReadKernels = tuple) -> None:
        """Notes that slots of a layout use a policy from now on. Advisors of other pipelines take this into account.

        ``layout`` and ``kernels`` are as for ``choose``.
        """
        if self._attributes() is not None:
            _IN_USE[self] = self._device, _task_of(layout, kernels), policy

    def note_unused(self) -> None:
        """Notes that this pipeline has ended. Advisors of other pipelines then ignore it."""
        _IN_USE.pop(self, None)

    @property
    def breaks_guideline(self) -> bool:
        """True if this pipeline's slots were switched from policy D, and Guideline 2 (Eq. 11) no longer allows that.

        That happens if other pipelines end or change.
        """
        if self not in _IN_USE:
            return False
        _, task, policy = _IN_USE[self]
        as_it_was = [*self._other_tasks(), (task, Policy.DEVICE)]
        return (task, policy) in self._switched and max_switched_kernels(as_it_was) < task.num_kernels

    def _find_best(self, task: Task, layout: Layout, allowed: Sequence[Policy], *, shared: bool) -> MemoryChoice:
        if self._constants is None:
            self._constants = calibrate_machine(self._device, self._database).constants
        (predicted,) = assign([task], self._constants, allowed, running=self._other_tasks())
        if predicted.switched:
            self._switched.append((task, predicted.policy))
        times = self._time(layout, allowed, shared)
        fastest = min(times, key=lambda policy: times[policy])
        # A trial runs alone, so it cannot refute a switch: other pipelines overlap the switch's cost.
        max_s = math.inf if predicted.switched else (1 + TOLERANCE) * times[fastest]
        confirmed = predicted.policy in times and times[predicted.policy] <= max_s
        listed = ", ".join(f"{policy.value} {1e3 * seconds:.3g} ms" for policy, seconds in times.items())
        reason = f"predicted: {predicted.reason.removesuffix('.')}; tried: {listed}"
        policy = predicted.policy if confirmed else fastest
        switchable = self._switches and policy is Policy.DEVICE and {Policy.MANAGED, Policy.PINNED} <= set(allowed)
        return MemoryChoice(policy, reason, switchable=switchable)

    def _whole(self, layout: Layout, kernels: ReadKernels) -> str:
        """Returns, as text, the predicted overheads of a full batch if the whole model's memory has one policy.

        This is the paper's case: a GPU that shares its memory with the CPU. There, managed memory is flushed after each
        kernel, and pinned memory is read past the cache.
        """
        assert self._constants is not None
        task = batch_task(
            "model",
            image_bytes=0,
            feature_bytes=layout.slot_bytes,
            kernels=kernels_within(kernels(), layout.batch_size, cuda.l2_cache_bytes(self._device.index)),
            execution_ms=0.0,
            feature_tensors=len(layout.specs),
        )
        return describe(choose(task, self._constants).overheads, POLICIES)

    def _time(self, layout: Layout, allowed: Sequence[Policy], shared: bool) -> Mapping[Policy, float]:
        key = layout.slot_bytes, shared
        if key not in self._trial_times:
            times = self._trial(allowed, layout, Trial(self._device, shared, self._switches))
            if not times:
                raise ConfigurationError(f"{self._device} has no room for one slot of {layout.slot_bytes:,} bytes.")
            self._trial_times[key] = times
        return self._trial_times[key]

    def _other_tasks(self) -> list[tuple[Task, Policy]]:
        """Returns the tasks of other pipelines on this device, and their policies."""
        return [
            (task, policy)
            for advisor, (device, task, policy) in list(_IN_USE.items())
            if advisor is not self and str(device) == str(self._device)
        ]

    def _attributes(self) -> DeviceAttributes | None:
        return cuda.device_attributes(self._device.index) if self._device.type == "cuda" else None


_IN_USE: WeakKeyDictionary[MemoryAdvisor, tuple[Device, Task, Policy]] = WeakKeyDictionary()


def _task_of(layout: Layout, kernels: ReadKernels) -> Task:
    """Returns the task that brings the features of a full batch into a slot of a layout."""
    return feature_task(layout.slot_bytes, num_kernels=max(1, len(kernels())), copies=len(layout.specs))
