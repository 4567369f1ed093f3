"""Times probes for all constants of Table III that a benchmark can find, on a GPU with memory of each policy."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import torch
from torch import Tensor

from split_infer_ros.buffers.host_arrays import Values, as_array, as_tensor, copy_into
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK
from split_infer_ros.memory_cost.cpu_microbenchmarks import clocked, read, touch
from split_infer_ros.memory_cost.samples import Probe
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.timing import Stopwatch, do_nothing

_PROBES = {
    Policy.HOST: (Probe.TOUCH_FRESH, Probe.TOUCH_AGAIN),
    Policy.DEVICE: (Probe.TO_DEVICE, Probe.TO_HOST, Probe.KERNEL_DEVICE, Probe.READ_HOST, Probe.REREAD_CACHED),
    Policy.MANAGED: (Probe.KERNEL_MANAGED, Probe.READ_MANAGED),
    Policy.PINNED: (Probe.KERNEL_PINNED, Probe.READ_PINNED, Probe.REREAD_UNCACHED),
}


Allocate = Callable[[Policy, int, Device], Memory]


class GpuMicrobenchmarks:
    """Times probes on a GPU.

    A stopwatch times copies and kernels on a stream of their own. The clock times what the CPU does while no kernel
    runs.

    Args:
        device: the GPU.
        policies: the legal policies. Constants of other policies stay absent.
        allocate: allocates memory of a policy. This object keeps the memory.

    Attributes:
        probes: the probes that can be timed.
    """

    def __init__(self, device: Device, policies: Collection[Policy] = POLICIES, allocate: Allocate = allocate) -> None:
        self.probes = tuple(
            probe for policy, probes in _PROBES.items() if policy in (Policy.HOST, *policies) for probe in probes
        )
        self._allocate = allocate
        self._device = device
        self._stream = Stream(device)
        self._stopwatch = Stopwatch(device)
        self._memory: dict[tuple[Policy, int], Memory] = {}

    def __call__(self, probe: Probe, nbytes: int) -> float:
        """Returns the seconds that a probe takes on ``nbytes`` bytes.

        Raises:
            ConfigurationError: there is not enough memory.
        """
        if probe in _PROBES[Policy.HOST]:
            return touch(nbytes, again=probe is Probe.TOUCH_AGAIN)
        (policy,) = (policy for policy, probes in _PROBES.items() if probe in probes)
        with self._stream.work("microbenchmark"):
            if probe in (Probe.REREAD_CACHED, Probe.REREAD_UNCACHED):
                block = self._memory_of(policy, CACHED_BLOCK).device
                return self._stopwatch.time(lambda: reread(block, CACHED_BLOCK + nbytes))
            memory = self._memory_of(policy, nbytes)
            write = partial(
                as_tensor(memory.host).fill_, 0
            )  # moves pages of managed memory to the CPU and makes its cache dirty
            if probe is Probe.TO_DEVICE:  # a copy takes longer from a dirty cache
                return self._stopwatch.time(lambda: copy_into(memory.device, memory.host), write)
            if probe in (Probe.TO_HOST, Probe.READ_HOST):
                taken = self._stopwatch.time(lambda: copy_into(memory.host, memory.device))
                return taken if probe is Probe.TO_HOST else clocked(lambda: read(as_array(memory.host)))
            before = write if policy.maps_on_access else do_nothing
            taken = self._stopwatch.time(lambda: run_kernel(memory), before)
            if probe in (Probe.READ_MANAGED, Probe.READ_PINNED):
                return clocked(lambda: read(as_array(memory.host)))
            return taken

    def _memory_of(self, policy: Policy, nbytes: int) -> Memory:
        """Returns memory of exactly ``nbytes`` bytes, allocated at the first call.

        The size must be exact, because the cost of a policy can depend on the size of the allocation.
        """
        key = policy, nbytes
        if key not in self._memory:
            memory = self._memory[key] = self._allocate(policy, nbytes, self._device)
            as_tensor(memory.host).fill_(0)
        return self._memory[key]


def run_kernel(memory: Memory) -> None:
    """Runs a kernel that reads and writes each byte once. The memory belongs to the CPU before and after."""
    memory.give_to_device()
    as_tensor(memory.device).view(torch.float32).add_(1.0)
    memory.give_to_host()


def reread(block: Values, nbytes: int) -> Tensor:
    """Reads ``nbytes`` bytes in one kernel, which reads the block (uint8) again and again. The result is of no use."""
    return as_tensor(block).view(torch.float32).expand(nbytes // len(block), -1).sum()
