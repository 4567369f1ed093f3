"""Chooses the memory policy of a plan: the one that was asked for, or for ``auto`` the best one on this machine.

For ``auto``, the overhead model predicts the best policy and a short trial confirms it. Other pipelines of this process
can overlap the extra cost of a policy with less memory. Such a policy then needs no confirmation.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import AUTO, DeviceAttributes, Policy, find_policy, legal_policies
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost.assignment import assign
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.machine import calibrate_machine
from split_infer_ros.memory_cost.task import Task, feature_task
from split_infer_ros.runtime.streams import Stream

WARM_UP_ROUNDS = 1
TIMED_ROUNDS = 9
TOLERANCE = 0.03  # a predicted policy is confirmed if its trial is at most this share slower than the fastest one

PolicyTrial = Callable[[Sequence[Policy], Layout, torch.device], Mapping[Policy, float]]


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """A memory policy and the reason for it, as a phrase."""

    policy: Policy
    reason: str


class MemoryAdvisor:
    """Chooses memory policies for one pipeline on one device. It makes one trial for each slot size.

    Args:
        device: where the backbone runs.
        database: where the machine's constants are kept; if None, the user's own database.
        trial: returns the seconds that each policy takes; ``time_policies`` if None.
    """

    def __init__(
        self, device: torch.device, database: Database | None = None, trial: PolicyTrial | None = None
    ) -> None:
        self._device = device
        self._database = database
        self._trial = trial or time_policies
        self._constants: MachineConstants | None = None
        self._trial_times: dict[tuple[int, bool], Mapping[Policy, float]] = {}

    def choose(self, name: str, layout: Layout, shared: bool) -> MemoryChoice:
        """Returns the policy for slots of a layout.

        Args:
            name: ``device``, ``managed``, ``pinned`` or ``auto``.
            layout: of a slot.
            shared: whether another process maps the slots as well.

        Raises:
            ConfigurationError: there is no policy of that name, or this GPU does not allow it.
        """
        attributes = self._attributes()
        if name != AUTO:
            policy = find_policy(name, attributes, shared)
            return MemoryChoice(policy, "as asked for" if attributes else "the backbone runs on the CPU")
        if attributes is None:
            return MemoryChoice(Policy.HOST, "the backbone runs on the CPU")
        return self._find_best(layout, legal_policies(attributes, shared), shared)

    @property
    def assignment_inputs(self) -> tuple[MachineConstants, Sequence[Policy]] | None:
        """The machine's constants, and the policies that are legal for memory of this process alone.

        None until ``auto`` was chosen on a GPU.
        """
        attributes = self._attributes()
        return None if self._constants is None or attributes is None else (self._constants, legal_policies(attributes))

    def note_in_use(self, layout: Layout, policy: Policy) -> None:
        """Notes that slots of a layout use a policy from now on. Advisors of other pipelines take it into account."""
        _IN_USE[self] = self._device, feature_task(layout.slot_bytes), policy

    def _find_best(self, layout: Layout, allowed: Sequence[Policy], shared: bool) -> MemoryChoice:
        if self._constants is None:
            self._constants = calibrate_machine(self._device, self._database).constants
        (predicted,) = assign([feature_task(layout.slot_bytes)], self._constants, allowed, running=self._other_tasks())
        times = self._time(layout, allowed, shared)
        fastest = min(times, key=lambda policy: times[policy])
        # A trial runs alone, so it cannot refute a switch whose cost other pipelines overlap.
        max_s = math.inf if predicted.switched else (1 + TOLERANCE) * times[fastest]
        confirmed = predicted.policy in times and times[predicted.policy] <= max_s
        listed = ", ".join(f"{policy.value} {1e3 * seconds:.3g} ms" for policy, seconds in times.items())
        reason = f"predicted: {predicted.reason.removesuffix('.')}; tried: {listed}"
        return MemoryChoice(predicted.policy if confirmed else fastest, reason)

    def _time(self, layout: Layout, allowed: Sequence[Policy], shared: bool) -> Mapping[Policy, float]:
        key = layout.slot_bytes, shared
        if key not in self._trial_times:
            times = self._trial(allowed, layout, self._device)
            if not times:
                raise ConfigurationError(f"{self._device} has no room for one slot of {layout.slot_bytes:,} bytes.")
            self._trial_times[key] = times
        return self._trial_times[key]

    def _other_tasks(self) -> list[tuple[Task, Policy]]:
        """Returns the tasks of other pipelines on this device, with their policies."""
        return [
            (task, policy)
            for advisor, (device, task, policy) in list(_IN_USE.items())
            if advisor is not self and device == self._device
        ]

    def _attributes(self) -> DeviceAttributes | None:
        return cuda.device_attributes(self._device.index) if self._device.type == "cuda" else None


_IN_USE: WeakKeyDictionary[MemoryAdvisor, tuple[torch.device, Task, Policy]] = WeakKeyDictionary()


def time_policies(policies: Sequence[Policy], layout: Layout, device: torch.device) -> dict[Policy, float]:
    """Measures how long it takes until the CPU has read features that lie on the device.

    Args:
        policies: to measure, in interleaved turns.
        layout: of the slot, which is filled completely.
        device: where the features are.

    Returns:
        The median seconds of each policy. Policies without room on the device are left out.
    """
    stream = Stream(device)
    features = [torch.zeros((layout.batch_size, *spec.shape), dtype=spec.dtype, device=device) for spec in layout.specs]
    slots = _allocate_slots(policies, layout, device)
    times: dict[Policy, list[float]] = {policy: [] for policy in slots}
    for _ in range(WARM_UP_ROUNDS + TIMED_ROUNDS):
        for policy, memory in slots.items():
            times[policy].append(_transfer_s(memory, features, stream))
    return {policy: statistics.median(samples[WARM_UP_ROUNDS:]) for policy, samples in times.items()}


def _allocate_slots(policies: Sequence[Policy], layout: Layout, device: torch.device) -> dict[Policy, SlotMemory]:
    """Returns one slot for each policy that has room on the device."""
    slots: dict[Policy, SlotMemory] = {}
    for policy in policies:
        try:
            memory = SlotMemory.allocate(layout, 1, Place(policy, device))
        except ConfigurationError:
            continue
        if not memory.note:  # otherwise it is memory of another policy
            slots[policy] = memory
    return slots


def _transfer_s(memory: SlotMemory, features: Sequence[Tensor], stream: Stream) -> float:
    """Returns the seconds from features on the device until the CPU has read them from the slot."""
    count = len(features[0])
    start = time.perf_counter()
    with stream.work("trial"):
        memory.write(0, features)
        if memory.needs_copy:
            memory.fetch(0, count)
    stream.fence().wait()
    for view in memory.views(0, count):
        view.sum()
    return time.perf_counter() - start
