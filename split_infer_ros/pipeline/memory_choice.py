"""Which memory policy a plan gets: the one that was asked for, or for ``auto`` the one that the overhead model predicts
to be best here and that a short trial confirms, unless other pipelines of this process overlap what a smaller one
costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

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

ROUNDS = 9
WITHIN = 0.03  # a prediction that is no further from the best of the trial stands

Try = Callable[[Sequence[Policy], Layout, torch.device], Mapping[Policy, float]]


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """A policy, and why, in words."""

    policy: Policy
    reason: str


class MemoryAdvisor:
    """Chooses for one pipeline on one device; a trial is made once for each size of slot.

    Args:
        device: where the backbone runs.
        database: in which the machine's constants are kept; the user's own if None.
        attempt: the trial: seconds of each policy.
    """

    def __init__(self, device: torch.device, database: Database | None = None, attempt: Try | None = None) -> None:
        self._device = device
        self._database = database
        self._try = attempt or try_policies
        self._constants: MachineConstants | None = None
        self._tried: dict[tuple[int, bool], Mapping[Policy, float]] = {}

    def choose(self, name: str, layout: Layout, shared: bool) -> MemoryChoice:
        """The policy for slots of that layout.

        Args:
            name: ``device``, ``managed``, ``pinned`` or ``auto``.
            layout: of a slot.
            shared: the slots are memory that another process maps, too.

        Raises:
            ConfigurationError: it is none, or this GPU does not allow it.
        """
        attributes = self._attributes()
        if name != AUTO:
            policy = find_policy(name, attributes, shared)
            return MemoryChoice(policy, "as asked for" if attributes else "the backbone runs on the CPU")
        if attributes is None:
            return MemoryChoice(Policy.HOST, "the backbone runs on the CPU")
        return self._find_best(layout, legal_policies(attributes, shared), shared)

    @property
    def known(self) -> tuple[MachineConstants, Sequence[Policy]] | None:
        """By what it chose, once ``auto`` was chosen on a GPU: the constants, and the policies that are legal for
        memory of this process alone."""
        attributes = self._attributes()
        return None if self._constants is None or attributes is None else (self._constants, legal_policies(attributes))

    def took(self, layout: Layout, policy: Policy) -> None:
        """Slots of that layout are in use by that policy now, which the other pipelines of this process reckon with."""
        _IN_USE[self] = self._device, feature_task(layout.slot_bytes), policy

    def _find_best(self, layout: Layout, allowed: Sequence[Policy], shared: bool) -> MemoryChoice:
        if self._constants is None:
            self._constants = calibrate_machine(self._device, self._database).constants
        (predicted,) = assign([feature_task(layout.slot_bytes)], self._constants, allowed, running=self._beside())
        tried = self._trial(layout, allowed, shared)
        best = min(tried, key=lambda policy: tried[policy])
        # where other pipelines make up for what a switch costs, a trial without them has no say
        at_most = float("inf") if predicted.switched else (1 + WITHIN) * tried[best]
        confirmed = predicted.policy in tried and tried[predicted.policy] <= at_most
        times = ", ".join(f"{policy.value} {1e3 * seconds:.3g} ms" for policy, seconds in tried.items())
        reason = f"predicted: {predicted.reason.removesuffix('.')}; tried: {times}"
        return MemoryChoice(predicted.policy if confirmed else best, reason)

    def _trial(self, layout: Layout, allowed: Sequence[Policy], shared: bool) -> Mapping[Policy, float]:
        place = layout.slot_bytes, shared
        if place not in self._tried:
            tried = self._try(allowed, layout, self._device)
            if not tried:
                raise ConfigurationError(f"{self._device} has no room for one slot of {layout.slot_bytes:,} bytes.")
            self._tried[place] = tried
        return self._tried[place]

    def _beside(self) -> list[tuple[Task, Policy]]:
        """What other pipelines have on this device."""
        return [
            (task, policy)
            for advisor, (device, task, policy) in list(_IN_USE.items())
            if advisor is not self and device == self._device
        ]

    def _attributes(self) -> DeviceAttributes | None:
        return cuda.device_attributes(self._device.index) if self._device.type == "cuda" else None


_IN_USE: WeakKeyDictionary[MemoryAdvisor, tuple[torch.device, Task, Policy]] = WeakKeyDictionary()


def try_policies(policies: Sequence[Policy], layout: Layout, device: torch.device) -> dict[Policy, float]:
    """Median seconds from features on the device until the CPU has read them; policies without room are left out.

    Args:
        policies: those to try, in turns.
        layout: of a slot, which is filled.
        device: where the features are.
    """
    stream = Stream(device)
    features = [torch.zeros((layout.batch_size, *spec.shape), dtype=spec.dtype, device=device) for spec in layout.specs]
    slots: dict[Policy, SlotMemory] = {}
    for policy in policies:
        try:
            made = SlotMemory.allocate(layout, 1, Place(policy, device))
        except ConfigurationError:
            continue
        if not made.note:
            slots[policy] = made
    times: dict[Policy, list[float]] = {policy: [] for policy in slots}
    for _ in range(1 + ROUNDS):
        for policy, memory in slots.items():
            start = time.perf_counter()
            with stream.work("trial"):
                memory.write(0, features)
                if memory.needs_copy:
                    memory.fetch(0, layout.batch_size)
            stream.fence().wait()
            for view in memory.views(0, layout.batch_size):
                view.sum()
            times[policy].append(time.perf_counter() - start)
    return {policy: statistics.median(found[1:]) for policy, found in times.items()}
