"""Times how long each memory policy takes to bring features from the device to the CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import torch_dtype
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Stream

if TYPE_CHECKING:
    from torch import Tensor

WARM_UP_ROUNDS = 1
TIMED_ROUNDS = 9


@dataclass(frozen=True, slots=True)
class Trial:
    """Describes the slots of a trial. Their memory is of the kind that the pipeline's slots will have.

    Attributes:
        device: the device that has the features.
        shared: whether another process maps the slots as well.
        switches: whether slots of policy D must serve the other policies, too.
    """

    device: Device
    shared: bool = False
    switches: bool = False


def time_policies(policies: Sequence[Policy], layout: Layout, trial: Trial) -> dict[Policy, float]:
    """Measures how long each policy takes until the CPU has read features that lie on the device.

    Args:
        policies: the policies to measure, in interleaved turns.
        layout: the layout of a slot. The slot is filled completely.
        trial: describes the slots.

    Returns:
        The median seconds of each policy. Policies without room on the device are left out.
    """
    import torch  # only here: only trials on a GPU need it

    device, stream = trial.device, Stream(trial.device)
    features = [
        torch.zeros((layout.batch_size, *spec.shape), dtype=torch_dtype(spec.dtype), device=device)
        for spec in layout.specs
    ]
    pools = _allocate_pools(policies, layout, trial)
    times: dict[Policy, list[float]] = {policy: [] for policy in pools}
    try:
        for _ in range(WARM_UP_ROUNDS + TIMED_ROUNDS):
            for policy, pool in pools.items():
                times[policy].append(_transfer_s(pool.slots, features, stream))
    finally:
        for pool in pools.values():
            pool.close()
    return {policy: statistics.median(samples[WARM_UP_ROUNDS:]) for policy, samples in times.items()}


def _allocate_pools(
    policies: Sequence[Policy], layout: Layout, trial: Trial
) -> dict[Policy, SlotPool | SharedSlotPool]:
    """Returns a pool of one slot for each policy that has room on the device."""
    pools: dict[Policy, SlotPool | SharedSlotPool] = {}
    kind = SharedSlotPool if trial.shared else SlotPool
    can_switch = trial.switches and {Policy.MANAGED, Policy.PINNED} <= set(policies)
    for policy in policies:
        place = Place(policy, trial.device, can_switch and policy is Policy.DEVICE)
        try:
            pool = kind.allocate(layout, 1, place)
        except ConfigurationError:
            continue
        if pool.slots.note:  # the slot has memory of another policy
            pool.close()
        else:
            pools[policy] = pool
    return pools


def _transfer_s(memory: SlotMemory, features: Sequence[Tensor], stream: Stream) -> float:
    """Returns the seconds that it takes to write features from the device into the slot and to read them on the CPU."""
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
