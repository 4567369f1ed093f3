"""One buffer that CPU and GPU take turns at, under each policy: how long a turn takes, and what the model says.

The CPU has written the buffer. The GPU changes each byte of it; in the case that is friendly to caches it then reads
16 times as much, from a block that its cache holds. The CPU reads each byte. That is the response time; the pure
execution is the same kernels on the GPU's own memory, and the same reading by the CPU.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from split_infer_ros.buffers.memory import Memory, allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_model.calibration import CACHED_BLOCK
from split_infer_ros.memory_model.choose import choose
from split_infer_ros.memory_model.constants import MachineConstants
from split_infer_ros.memory_model.cpu_microbenchmarks import read
from split_infer_ros.memory_model.gpu_microbenchmarks import reread, run_kernel
from split_infer_ros.memory_model.overhead import response_ms
from split_infer_ros.memory_model.task import Kernel, Task

MIB = 2**20
SMALL = tuple(CACHED_BLOCK * size for size in (1, 2, 3, 4, 5, 6, 7, 8))
LARGE = tuple(MIB * size for size in (4, 6, 8, 12, 16, 24, 32, 48))
REREADS = 16


@dataclass(frozen=True)
class Case:
    """Eight sizes of one kind of access."""

    name: str
    sizes: Collection[int]
    rereads: int


CASES = tuple(
    Case(f"{size}, {access}", sizes, rereads)
    for size, sizes in (("small", SMALL), ("large", LARGE))
    for access, rereads in (("streaming", 0), ("cache-friendly", REREADS))
)


def task_of(nbytes: int, rereads: int, execution_ms: float = 0.0) -> Task:
    """The turn as the model sees it."""
    kernels = [Kernel(nbytes, written_bytes=nbytes)]
    if rereads:
        kernels.append(Kernel(0, after_host=False, cached_bytes=rereads * nbytes))
    return Task("turn", nbytes, nbytes, tuple(kernels), copies=2, execution_ms=execution_ms)


class PolicyRuns:
    """Runs turns.

    Args:
        device: the GPU.
        rounds: of each turn, in which the policies take turns; one more warms up.
        give: gives memory of a policy.
    """

    def __init__(
        self, device: torch.device, rounds: int, give: Callable[[Policy, int, torch.device], Memory] = allocate
    ) -> None:
        self._device = device
        self._rounds = rounds
        self._give = give
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def compare(
        self, case: Case, constants: MachineConstants, legal: Collection[Policy]
    ) -> Iterator[Mapping[str, Any]]:
        """A row for each size and policy, with what was measured and what was predicted."""
        for nbytes in case.sizes:
            memories = {policy: self._give(policy, nbytes, self._device) for policy in legal}
            own = self._give(Policy.DEVICE, nbytes, self._device)
            times: dict[Policy | None, list[float]] = {policy: [] for policy in (None, *legal)}
            for turn in range(self._rounds + 1):
                for policy in times:
                    memory = own if policy is None else memories[policy]
                    taken = self._execute(memory, case.rereads) if policy is None else self._turn(memory, case.rereads)
                    if turn:
                        times[policy].append(taken)
            execution_ms = 1e3 * statistics.median(times[None])
            choice = choose(task_of(nbytes, case.rereads, execution_ms), constants, legal)
            for policy in legal:
                predicted = response_ms(task_of(nbytes, case.rereads, execution_ms), choice.overheads[policy])
                measured = 1e3 * statistics.median(times[policy])
                yield {
                    "what": "policy",
                    "case": case.name,
                    "bytes": nbytes,
                    "policy": policy.value,
                    "auto": choice.policy.value,
                    "footprint_bytes": memories[policy].bytes,
                    "measured_ms": measured,
                    "predicted_ms": predicted,
                    "error": abs(predicted / measured - 1),
                }

    def _turn(self, memory: Memory, rereads: int) -> float:
        """Seconds from the CPU's last write to its last read."""
        memory.host.fill_(0)
        with self._on_stream():
            begin = time.perf_counter()
            if not memory.is_one:
                memory.device.copy_(memory.host, non_blocking=True)
            self._kernels(memory, rereads)
            if not memory.is_one:
                memory.host.copy_(memory.device, non_blocking=True)
            self._wait()
            read(memory.host.numpy())
            return time.perf_counter() - begin

    def _execute(self, memory: Memory, rereads: int) -> float:
        """Seconds of the kernels on memory of the GPU, and of the CPU's reading of what has just arrived."""
        with self._on_stream():
            memory.device.copy_(memory.host, non_blocking=True)
            self._wait()
            begin = time.perf_counter()
            self._kernels(memory, rereads)
            self._wait()
            kernels = time.perf_counter() - begin
            memory.host.copy_(memory.device, non_blocking=True)
            self._wait()
        begin = time.perf_counter()
        read(memory.host.numpy())
        return kernels + time.perf_counter() - begin

    def _kernels(self, memory: Memory, rereads: int) -> None:
        run_kernel(memory)
        if rereads:
            memory.give_to_device()
            reread(memory.device[:CACHED_BLOCK], rereads * len(memory.device))
            memory.give_to_host()

    def _wait(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()

    def _on_stream(self) -> AbstractContextManager[object]:
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
