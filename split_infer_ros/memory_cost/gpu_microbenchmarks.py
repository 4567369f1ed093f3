"""All of Table III that benchmarking finds, timed on a GPU with memory of each policy."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from split_infer_ros.buffers.memory import Memory, allocate
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK
from split_infer_ros.memory_cost.cpu_microbenchmarks import clocked, read, touch
from split_infer_ros.memory_cost.samples import Probe
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.timing import Stopwatch, nothing

_PROBES = {
    Policy.HOST: (Probe.TOUCH_FRESH, Probe.TOUCH_AGAIN),
    Policy.DEVICE: (Probe.TO_DEVICE, Probe.TO_HOST, Probe.KERNEL_DEVICE, Probe.READ_HOST, Probe.REREAD_CACHED),
    Policy.MANAGED: (Probe.KERNEL_MANAGED, Probe.READ_MANAGED),
    Policy.PINNED: (Probe.KERNEL_PINNED, Probe.REREAD_UNCACHED),
}


Allocate = Callable[[Policy, int, torch.device], Memory]


class GpuMicrobenchmarks:
    """The times of its probes.

    A stopwatch times copies and kernels, on a stream of their own. The clock times what the CPU does, while no kernel
    runs.

    Args:
        device: the GPU.
        policies: which are legal; constants of the others stay absent.
        allocate: gives memory of a policy; it is freed with this.

    Attributes:
        probes: what there is to time.
    """

    def __init__(
        self, device: torch.device, policies: Collection[Policy] = POLICIES, allocate: Allocate = allocate
    ) -> None:
        self.probes = tuple(
            probe for policy, probes in _PROBES.items() if policy in (Policy.HOST, *policies) for probe in probes
        )
        self._allocate = allocate
        self._device = device
        self._stream = Stream(device)
        self._watch = Stopwatch(device)
        self._memory: dict[tuple[Policy, int], Memory] = {}

    def __call__(self, probe: Probe, nbytes: int) -> float:
        """Seconds that the probe takes on so many bytes.

        Raises:
            ConfigurationError: the memory cannot be had.
        """
        if probe in _PROBES[Policy.HOST]:
            return touch(nbytes, again=probe is Probe.TOUCH_AGAIN)
        (policy,) = (policy for policy, probes in _PROBES.items() if probe in probes)
        with self._stream.work("microbenchmark"):
            if probe in (Probe.REREAD_CACHED, Probe.REREAD_UNCACHED):
                block = self._of(policy, CACHED_BLOCK).device
                return self._watch.time(lambda: reread(block, CACHED_BLOCK + nbytes))
            memory = self._of(policy, nbytes)
            if probe is Probe.TO_DEVICE:
                return self._watch.time(lambda: memory.device.copy_(memory.host, non_blocking=True))
            if probe in (Probe.TO_HOST, Probe.READ_HOST):
                taken = self._watch.time(lambda: memory.host.copy_(memory.device, non_blocking=True))
                return taken if probe is Probe.TO_HOST else clocked(lambda: read(memory.host.numpy()))
            # the pages of managed memory are the CPU's, and its cache is dirty
            before = (lambda: memory.host.fill_(0)) if policy is Policy.MANAGED else nothing
            taken = self._watch.time(lambda: run_kernel(memory), before)
            return clocked(lambda: read(memory.host.numpy())) if probe is Probe.READ_MANAGED else taken

    def _of(self, policy: Policy, nbytes: int) -> Memory:
        """Memory of just that size, since what a policy costs may depend on all that was allocated; made once."""
        place = policy, nbytes
        if place not in self._memory:
            memory = self._memory[place] = self._allocate(policy, nbytes, self._device)
            memory.host.fill_(0)
        return self._memory[place]


def run_kernel(memory: Memory) -> None:
    """A kernel that reads and writes each byte once, in memory that is the CPU's before and after."""
    memory.give_to_device()
    memory.device.view(torch.float32).add_(1.0)
    memory.give_to_host()


def reread(block: Tensor, nbytes: int) -> Tensor:
    """Read so many bytes, all of them in the block (uint8), which is gone over again and again in one kernel."""
    return block.view(torch.float32).expand(nbytes // len(block), -1).sum()
