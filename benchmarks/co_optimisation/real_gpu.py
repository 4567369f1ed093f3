"""Runs the applications of a dispatch on a GPU, and times them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.co_optimisation.runs import Application
from split_infer_ros.buffers.host_arrays import as_array, as_tensor, copy_into
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask
from split_infer_ros.memory_cost.cpu_microbenchmarks import read
from split_infer_ros.memory_cost.gpu_microbenchmarks import reread


class RealGpu:
    """Runs applications on a GPU, the two of a pair in a stream each. Memory is allocated when it is first needed.

    Args:
        device: the GPU.
        applications: the applications, by name.
        size: the size of the input, in bytes.
        allocate: allocates memory of a policy.
    """

    def __init__(
        self,
        device: torch.device,
        applications: Mapping[str, Application],
        size: int,
        allocate: Callable[[Policy, int, torch.device], Memory] = allocate,
    ) -> None:
        self._device = device
        self._applications = applications
        self._size = size
        self._allocate = allocate
        self._memory: dict[tuple[str, Policy], Memory] = {}
        self._streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else [None, None]

    def __call__(self, released: Sequence[ReleasedTask]) -> Sequence[float]:
        """Runs the released tasks. Returns the ms from the release until the CPU has read the results of each task.

        The CPU reads results in device memory first.
        """
        memories = [self.memory_of(each.task.name, each.policy) for each in released]
        for memory in memories:
            memory.host[...] = 0
        ends = [0.0] * len(released)
        begin = time.perf_counter()
        for each, memory, stream in zip(released, memories, self._streams, strict=False):
            with torch.cuda.stream(stream):  # of None it does nothing
                self._launch(self._applications[each.task.name], memory)
        for index in sorted(range(len(released)), key=lambda index: released[index].policy is not Policy.DEVICE):
            _wait(self._streams[index])
            read(as_array(memories[index].host))
            ends[index] = 1e3 * (time.perf_counter() - begin)
        return ends

    def execution_ms(self, application: Application, rounds: int) -> float:
        """Returns the ms of an application's kernels with the data in GPU memory: the median of ``rounds`` rounds."""
        memory, times = self.memory_of(application.name, Policy.DEVICE), []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            with torch.cuda.stream(self._streams[0]):
                _run_kernels(application, memory)
            _wait(self._streams[0])
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times[1:])

    def _launch(self, application: Application, memory: Memory) -> None:
        if memory.needs_copy:
            copy_into(memory.device, memory.host)
        _run_kernels(application, memory)
        if memory.needs_copy:
            copy_into(memory.host, memory.device)

    def memory_of(self, name: str, policy: Policy) -> Memory:
        """Returns the memory of an application's data under a policy. All its tasks use this memory."""
        if (name, policy) not in self._memory:
            nbytes = self._applications[name].nbytes(self._size)
            self._memory[name, policy] = self._allocate(policy, nbytes, self._device)
        return self._memory[name, policy]


def _run_kernels(application: Application, memory: Memory) -> None:
    """Runs all kernels. The memory belongs to the CPU before and after, and the CPU does not look in between."""
    memory.give_to_device()
    device = as_tensor(memory.device)
    nbytes, share = device.nbytes, application.share_bytes(device.nbytes)
    begins = [index * share % nbytes for index in range(application.kernels - 1)]
    for data in (device, *(device[begin : begin + share] for begin in begins)):
        data.view(torch.float32).add_(1.0)
        if application.rereads:
            reread(device[:CACHED_BLOCK], application.rereads * CACHED_BLOCK)
    memory.give_to_host()


def _wait(stream: torch.cuda.Stream | None) -> None:
    if stream is not None:
        stream.synchronize()
