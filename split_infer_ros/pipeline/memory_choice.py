"""Which memory policy a plan gets: the one that was asked for, or for ``auto`` the one that the overhead model predicts
to be best here and that a short trial confirms."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import AUTO, DeviceAttributes, Policy, find_policy, legal
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.memory_model.choose import choose
from split_infer_ros.memory_model.constants import MachineConstants
from split_infer_ros.memory_model.machine import calibrate_machine
from split_infer_ros.memory_model.task import feature_task
from split_infer_ros.pipeline.device import DeviceQueue
from split_infer_ros.tuning.database import Database

ROUNDS = 9
WITHIN = 0.03  # a prediction that is no further from the best of the trial stands

Try = Callable[[Sequence[Policy], Layout, torch.device], Mapping[Policy, float]]


@dataclass(frozen=True, slots=True)
class MemoryChoice:
    """A policy, and why, in words."""

    policy: Policy
    reason: str


class MemoryAdvisor:
    """Chooses for one device; a trial is made once for each size of slot.

    Args:
        device: where the backbone runs.
        database: in which the machine's constants are kept; the user's own if None.
        attempt: the trial: seconds of each policy.
    """

    def __init__(
        self, device: torch.device, database: Database | None = None, attempt: Try | None = None
    ) -> None:
        self._device = device
        self._database = database
        self._try = attempt or try_policies
        self._constants: MachineConstants | None = None
        self._chosen: dict[tuple[int, bool], MemoryChoice] = {}

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
        place = layout.slot_bytes, shared
        if place not in self._chosen:
            self._chosen[place] = self._find_best(layout, legal(attributes, shared))
        return self._chosen[place]

    def _find_best(self, layout: Layout, allowed: Sequence[Policy]) -> MemoryChoice:
        if self._constants is None:
            self._constants = calibrate_machine(self._device, self._database).constants
        predicted = choose(feature_task(layout.slot_bytes), self._constants, allowed)
        tried = self._try(allowed, layout, self._device)
        if not tried:
            raise ConfigurationError(f"{self._device} has no room for one slot of {layout.slot_bytes:,} bytes.")
        best = min(tried, key=lambda policy: tried[policy])
        confirmed = tried.get(predicted.policy, float("inf")) <= (1 + WITHIN) * tried[best]
        times = ", ".join(f"{policy.value} {1e3 * seconds:.3g} ms" for policy, seconds in tried.items())
        reason = f"predicted: {predicted.reason.removesuffix('.')}; tried: {times}"
        return MemoryChoice(predicted.policy if confirmed else best, reason)

    def _attributes(self) -> DeviceAttributes | None:
        return cuda.device_attributes(self._device.index or 0) if self._device.type == "cuda" else None


def try_policies(policies: Sequence[Policy], layout: Layout, device: torch.device) -> dict[Policy, float]:
    """Median seconds from features on the device until the CPU has read them; policies without room are left out.

    Args:
        policies: those to try, in turns.
        layout: of a slot, which is filled.
        device: where the features are.
    """
    queue = DeviceQueue(device)
    features = [
        torch.zeros((layout.batch_size, *spec.shape), dtype=spec.dtype, device=device) for spec in layout.specs
    ]
    slots: dict[Policy, SlotMemory] = {}
    for policy in policies:
        try:
            made = SlotMemory.make(layout, 1, Place(policy, device))
        except ConfigurationError:
            continue
        if not made.note:
            slots[policy] = made
    times: dict[Policy, list[float]] = {policy: [] for policy in slots}
    for _ in range(1 + ROUNDS):
        for policy, memory in slots.items():
            start = time.perf_counter()
            with queue.work("trial"):
                memory.write(0, features)
                if memory.copies:
                    memory.fetch(0, layout.batch_size)
            queue.mark().wait()
            for view in memory.views(0, layout.batch_size):
                view.sum()
            times[policy].append(time.perf_counter() - start)
    return {policy: statistics.median(found[1:]) for policy, found in times.items()}
