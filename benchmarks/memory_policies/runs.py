"""Runs a task on one buffer that CPU and GPU use by turns, under each policy, and predicts its time.

Before the task, the CPU writes the buffer. The GPU changes each byte of the buffer, in one case with 64 kernels one
after another. In cache-friendly cases, the GPU then reads 16 times as many bytes from a block that its cache holds. At
last the CPU reads each byte. The response time lasts from the CPU's write to the end of its reading. The pure execution
has the same kernels on the GPU's own memory, and the same reading by the CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from benchmarks.common.turns import rotated
from benchmarks.common.usage import Usage
from split_infer_ros.buffers.host_arrays import as_array, as_tensor, copy_into
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK
from split_infer_ros.memory_cost.choose import PolicyChoice, choose
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.cpu_microbenchmarks import read
from split_infer_ros.memory_cost.gpu_microbenchmarks import reread
from split_infer_ros.memory_cost.task import Kernel, Task

MIB = 2**20
SMALL = tuple(CACHED_BLOCK * size for size in (1, 2, 3, 4, 5, 6, 7, 8))
LARGE = tuple(MIB * size for size in (4, 6, 8, 12, 16, 24, 32, 48))
REREADS = 16
MANY_KERNELS = 64


@dataclass(frozen=True)
class Case:
    """One kind of access to buffers of eight sizes.

    Attributes:
        name: the case's name, for people.
        sizes: the sizes of the buffer, in bytes.
        rereads: how many bytes are read again from a block that the cache holds, as a multiple of the buffer's size.
        kernels: how many kernels change the whole buffer, one after the other.
    """

    name: str
    sizes: Sequence[int]
    rereads: int = 0
    kernels: int = 1


CASES = (
    *(
        Case(f"{size}, {access}", sizes, rereads)
        for size, sizes in (("small", SMALL), ("large", LARGE))
        for access, rereads in (("streaming", 0), ("cache-friendly", REREADS))
    ),
    Case("small, many kernels", SMALL, kernels=MANY_KERNELS),
)


def task_of(nbytes: int, case: Case) -> Task:
    """Returns the task of a case on a buffer of ``nbytes`` bytes, as the overhead model describes it."""
    kernels = [
        Kernel(nbytes, written_bytes=nbytes, mapped_bytes=nbytes),
        Kernel(nbytes, written_bytes=nbytes, launches=case.kernels - 1),
    ]
    if case.rereads:
        kernels.append(Kernel(0, cached_bytes=case.rereads * nbytes))
    return Task("task", nbytes, nbytes, tuple(kernels), copies=2)


EXECUTION = "execution"  # the task's kernels on the GPU's own memory, and the CPU's reading


def figure(case: Case, nbytes: int, policy: str) -> str:
    """Returns the name of a figure of the contest: a case, a size, and a policy or ``EXECUTION``."""
    return f"{case.name}, {nbytes}, {policy}"


class PolicyRuns:
    """Runs the tasks of all cases and sizes under all policies.

    Args:
        device: the GPU.
        cases: the kinds of access.
        constants: the machine's constants, with which the overhead model chooses policies and predicts times.
        legal: the policies that this GPU allows.
        give: allocates memory of a policy.

    Attributes:
        choices: the overhead model's choice and predictions, by the case's name and the size.
        usage: the memory and processor time of the runs, by the name of the figure.
    """

    def __init__(
        self,
        device: torch.device,
        cases: Sequence[Case],
        constants: MachineConstants,
        legal: Collection[Policy],
        give: Callable[[Policy, int, torch.device], Memory] = allocate,
    ) -> None:
        self.cases = cases
        self.legal = tuple(legal)
        self.usage = Usage()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._sizes = [(case, nbytes) for case in cases for nbytes in case.sizes]
        self.choices: dict[tuple[str, int], PolicyChoice] = {
            (case.name, nbytes): choose(task_of(nbytes, case), constants, legal) for case, nbytes in self._sizes
        }
        self._memories: dict[str, Memory] = {}
        for case, nbytes in self._sizes:
            self._memories[figure(case, nbytes, EXECUTION)] = give(Policy.DEVICE, nbytes, device)
            for policy in self.legal:
                self._memories[figure(case, nbytes, policy.value)] = give(policy, nbytes, device)
        self.turn(0)  # warms up

    def turn(self, number: int) -> dict[str, float]:
        """Runs each case at each size, under each policy in changing order. Returns seconds; ``figure`` names them."""
        taken = {}
        for case, nbytes in self._sizes:
            for name in rotated([EXECUTION, *(policy.value for policy in self.legal)], number):
                key = figure(case, nbytes, name)
                run = self._execute if name == EXECUTION else self.run
                with self.usage.of(key):
                    taken[key] = run(self._memories[key], case)
        return taken

    def footprint_bytes(self, case: Case, nbytes: int, policy: Policy) -> int:
        """Returns the bytes of memory that the task takes under a policy."""
        return self._memories[figure(case, nbytes, policy.value)].bytes

    def run(self, memory: Memory, case: Case) -> float:
        """Runs a task and returns the seconds from the CPU's last write to its last read."""
        memory.host[...] = 0
        with self._on_stream():
            begin = time.perf_counter()
            if memory.needs_copy:
                copy_into(memory.device, memory.host)
            self._kernels(memory, case)
            if memory.needs_copy:
                copy_into(memory.host, memory.device)
            self._wait()
            read(as_array(memory.host))
            return time.perf_counter() - begin

    def _execute(self, memory: Memory, case: Case) -> float:
        """Returns the seconds of the kernels on the GPU's memory plus those of the CPU's reading, without copies."""
        with self._on_stream():
            copy_into(memory.device, memory.host)
            self._wait()
            begin = time.perf_counter()
            self._kernels(memory, case)
            self._wait()
            kernels = time.perf_counter() - begin
            copy_into(memory.host, memory.device)
            self._wait()
        begin = time.perf_counter()
        read(as_array(memory.host))
        return kernels + time.perf_counter() - begin

    def _kernels(self, memory: Memory, case: Case) -> None:
        memory.give_to_device()
        device = as_tensor(memory.device)
        for _ in range(case.kernels):
            device.view(torch.float32).add_(1.0)
        if case.rereads:
            reread(device[:CACHED_BLOCK], case.rereads * len(device))
        memory.give_to_host()

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
