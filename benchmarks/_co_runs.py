"""Applications that share a GPU under a configuration of the paper's: dispatched one by one or in pairs.

The same dispatching runs them on a GPU, or simulates them: then each takes what the overhead model says.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from split_infer_ros.buffers.memory import Memory, allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.cpu_microbenchmarks import read
from split_infer_ros.memory_cost.gpu_microbenchmarks import reread, run_kernel
from split_infer_ros.memory_cost.overhead import overhead, response_ms
from split_infer_ros.memory_cost.task import Kernel, Task
from split_infer_ros.serving.co_run import Released, release, together_ms

D, MO, CO = "D", "MO", "CO"
CONFIGURATIONS = (D, MO, CO)
_FIXED = {D: Policy.DEVICE, MO: Policy.MANAGED}

Gpu = Callable[[Sequence[Released]], Sequence[float]]
"""Runs what was released; ms from then until the end of each."""


@dataclass(frozen=True, slots=True)
class Application:
    """The CPU writes its data, kernels change them in place one after the other, the CPU reads them.

    Attributes:
        name: for people.
        part: its data, in parts of the input size.
        kernels: how many.
        rereads: how often each kernel reads its first block again.
    """

    name: str
    part: float
    kernels: int
    rereads: int = 0

    def nbytes(self, size: int) -> int:
        """Its data, whole blocks."""
        return max(1, round(self.part * size / CACHED_BLOCK)) * CACHED_BLOCK

    def task(self, size: int, execution_ms: float = 0.0) -> Task:
        """As the model sees it: only the first kernel finds data that the CPU touched; the last one's go back."""
        nbytes, cached = self.nbytes(size), self.rereads * CACHED_BLOCK
        first = Kernel(nbytes, written_bytes=nbytes, cached_bytes=cached)
        others = (Kernel(nbytes, after_host=False, cached_bytes=cached),) * (self.kernels - 1)
        return Task(self.name, nbytes, nbytes, (first, *others), copies=2, execution_ms=execution_ms)


def dispatch(
    configuration: str, waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy]
) -> Sequence[Released]:
    """What goes to the GPU next: the first, under the policy that all have, or what the scheduler releases."""
    if configuration == CO:
        return release(waiting, constants, legal)
    return (Released(waiting[0], _FIXED[configuration]),)


@dataclass(frozen=True, slots=True)
class Served:
    """What became of all applications that wait at once.

    Attributes:
        total_ms: until the last end.
        response_ms: until an end, the mean.
        utilisation: the part of the time in which kernels ran.
        memory_bytes: that all data take, each application's under the policy with which it was dispatched.
        paired: applications that ran side by side.
    """

    total_ms: float
    response_ms: float
    utilisation: float
    memory_bytes: int
    paired: int


def serve(
    configuration: str, tasks: Sequence[Task], gpu: Gpu, constants: MachineConstants, legal: Collection[Policy]
) -> Served:
    """All applications at once, earliest deadline first (the deadline is the execution time, section IV-B)."""
    waiting = sorted(tasks, key=lambda task: task.execution_ms)
    clock, memory, paired = 0.0, 0, 0
    ends: list[float] = []
    while waiting:
        released = dispatch(configuration, waiting, constants, legal)
        taken = gpu(released)
        ends += [clock + end for end in taken]
        clock += max(taken)
        paired += len(released) if len(released) > 1 else 0
        memory += sum(found.task.footprint_bytes(found.policy) for found in released)
        for found in released:
            waiting.remove(found.task)
    busy = sum(task.execution_ms for task in tasks) / clock
    return Served(clock, statistics.fmean(ends), busy, memory, paired)


@dataclass(frozen=True)
class SimulatedGpu:
    """Takes what the overhead model says."""

    constants: MachineConstants

    def __call__(self, released: Sequence[Released]) -> Sequence[float]:
        """Ms from the release until the end of each."""
        alone = [response_ms(found.task, overhead(found.task, found.policy, self.constants)) for found in released]
        if len(released) == 1:
            return alone
        tasks = {found.policy: found.task for found in released}
        together = together_ms(tasks[Policy.DEVICE], tasks[Policy.MANAGED], self.constants)
        return [own if found.policy is Policy.DEVICE else together for found, own in zip(released, alone, strict=True)]


class RealGpu:
    """Runs them, each of a pair in its own stream; memory of a policy is allocated the first time.

    Args:
        device: the GPU.
        applications: by name.
        size: of the input, in bytes.
        give: gives memory of a policy.
    """

    def __init__(
        self,
        device: torch.device,
        applications: Mapping[str, Application],
        size: int,
        give: Callable[[Policy, int, torch.device], Memory] = allocate,
    ) -> None:
        self._device = device
        self._applications = applications
        self._size = size
        self._give = give
        self._memory: dict[tuple[str, Policy], Memory] = {}
        self._streams = [torch.cuda.Stream(device) for _ in range(2)] if device.type == "cuda" else [None, None]

    def __call__(self, released: Sequence[Released]) -> Sequence[float]:
        """Ms from the release until the CPU has read the results of each; the one under device memory is read first."""
        memories = [self._of(found.task.name, found.policy) for found in released]
        for memory in memories:
            memory.host.fill_(0)
        ends = [0.0] * len(released)
        begin = time.perf_counter()
        for found, memory, stream in zip(released, memories, self._streams, strict=False):
            with _in(stream):
                self._give_kernels(self._applications[found.task.name], memory)
        for index in sorted(range(len(released)), key=lambda index: released[index].policy is not Policy.DEVICE):
            _wait(self._streams[index])
            read(memories[index].host.numpy())
            ends[index] = 1e3 * (time.perf_counter() - begin)
        return ends

    def execution_ms(self, application: Application, rounds: int) -> float:
        """Its kernels alone on the GPU's own memory, where the data are."""
        memory, times = self._of(application.name, Policy.DEVICE), []
        for _ in range(rounds + 1):
            begin = time.perf_counter()
            with _in(self._streams[0]):
                _run_kernels(application, memory)
            _wait(self._streams[0])
            times.append(1e3 * (time.perf_counter() - begin))
        return statistics.median(times[1:])

    def _give_kernels(self, application: Application, memory: Memory) -> None:
        if memory.needs_copy:
            memory.device.copy_(memory.host, non_blocking=True)
        _run_kernels(application, memory)
        if memory.needs_copy:
            memory.host.copy_(memory.device, non_blocking=True)

    def _of(self, name: str, policy: Policy) -> Memory:
        if (name, policy) not in self._memory:
            nbytes = self._applications[name].nbytes(self._size)
            self._memory[name, policy] = self._give(policy, nbytes, self._device)
        return self._memory[name, policy]


def _run_kernels(application: Application, memory: Memory) -> None:
    for _ in range(application.kernels):
        run_kernel(memory)
        if application.rereads:
            memory.give_to_device()
            reread(memory.device[:CACHED_BLOCK], application.rereads * CACHED_BLOCK)
            memory.give_to_host()


@contextmanager
def _in(stream: torch.cuda.Stream | None) -> Iterator[None]:
    with torch.cuda.stream(stream):  # of None it does nothing
        yield


def _wait(stream: torch.cuda.Stream | None) -> None:
    if stream is not None:
        stream.synchronize()
