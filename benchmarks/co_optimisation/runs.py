"""Applications that share a GPU under a configuration of paper 003, dispatched one by one or in pairs.

The dispatches run on a GPU (``real_gpu``) or on a simulated board (``board_gpu``).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask, device_ends_ms, release
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Kernel, Task


class Configuration(Enum):
    """A configuration of paper 003.

    - ``D``: all tasks have device memory.
    - ``MO``: all tasks have managed memory.
    - ``CO``: co-optimised; the scheduler chooses the policy of each task.
    """

    D = "D"
    MO = "MO"
    CO = "CO"


FLOAT_BYTES = 4

D, MO, CO = Configuration

Gpu = Callable[[Sequence[ReleasedTask]], Sequence[float]]
"""Runs the released tasks, one or a pair. Returns the ms from the release until each task ends."""

Scheduler = Callable[
    [Sequence[Task], MachineConstants, Collection[Policy], Sequence[float]],
    Sequence[ReleasedTask],
]
"""Returns the tasks that go to the GPU next.

It takes the waiting tasks, the machine's constants, the legal policies, and in how many ms from now each task would
have ended under device memory.
"""


def co_optimised(
    waiting: Sequence[Task], constants: MachineConstants, legal: Collection[Policy], latest_ms: Sequence[float]
) -> Sequence[ReleasedTask]:
    """Releases the tasks that the package's scheduler chooses."""
    return release(waiting, constants, legal, latest_ms=latest_ms)


def fixed(policy: Policy) -> Scheduler:
    """Returns a scheduler that releases the first task under one policy."""
    return lambda waiting, constants, legal, latest_ms: (ReleasedTask(waiting[0], policy),)


SCHEDULERS: Mapping[Configuration, Scheduler] = {
    D: fixed(Policy.DEVICE),
    MO: fixed(Policy.MANAGED),
    CO: co_optimised,
}


@dataclass(frozen=True, slots=True)
class Application:
    """An application: the CPU writes data, kernels change the data in place one by one, and the CPU reads the data.

    The first kernel goes over all data, each further kernel over a share of the data.

    Attributes:
        name: the application's name, for people.
        part: the size of its data, as a multiple of the input size.
        kernels: how many kernels it has. Each kernel writes what it reads.
        share: the share of the data that each kernel but the first one goes over.
        rereads: how often each kernel reads its first block again, from the GPU's cache.
    """

    name: str
    part: float
    kernels: int
    share: float = 1.0
    rereads: int = 0

    def nbytes(self, size: int) -> int:
        """Returns the bytes of the application's data at an input size of ``size`` bytes, in whole blocks."""
        return max(1, round(self.part * size / CACHED_BLOCK)) * CACHED_BLOCK

    def share_bytes(self, nbytes: int) -> int:
        """Returns how many of ``nbytes`` bytes each kernel but the first one goes over, in whole float32 numbers."""
        return max(1, round(self.share * nbytes / FLOAT_BYTES)) * FLOAT_BYTES

    def task(self, size: int, execution_ms: float = 0.0) -> Task:
        """Returns the application as a task of the overhead model.

        Only its first kernel finds data that the CPU touched.

        Args:
            size: the input size, in bytes.
            execution_ms: the pure GPU time of the task.
        """
        nbytes, cached = self.nbytes(size), self.rereads * CACHED_BLOCK
        share = self.share_bytes(nbytes)
        first = Kernel(nbytes, written_bytes=nbytes, mapped_bytes=nbytes, cached_bytes=cached)
        others = Kernel(share, written_bytes=share, cached_bytes=cached, launches=self.kernels - 1)
        return Task(self.name, nbytes, nbytes, (first, others), copies=2, execution_ms=execution_ms)


@dataclass(frozen=True, slots=True)
class Served:
    """How all applications were served. All of them waited from the start.

    Attributes:
        total_ms: the time until the last application ended.
        response_ms: the mean time until an application ended.
        utilisation: the share of the time in which kernels ran.
        memory_bytes: the data of all applications, each under the policy of its dispatch.
        paired: how many applications ran in a co-run.
    """

    total_ms: float
    response_ms: float
    utilisation: float
    memory_bytes: int
    paired: int


def serve(
    scheduler: Scheduler,
    tasks: Sequence[Task],
    gpu: Gpu,
    constants: MachineConstants,
    legal: Collection[Policy],
) -> Served:
    """Serves all applications, the earliest deadline first. The deadline is the execution time (section IV-B).

    Args:
        scheduler: chooses what goes to the GPU next.
        tasks: the tasks of the applications.
        gpu: runs released tasks.
        constants: the constants of the machine.
        legal: the policies from which the scheduler chooses.
    """
    waiting = sorted(tasks, key=lambda task: task.execution_ms)
    latest_ms = {task.name: end_ms for task, end_ms in zip(waiting, device_ends_ms(waiting, constants), strict=True)}
    clock, memory, paired = 0.0, 0, 0
    ends: list[float] = []
    while waiting:
        released = scheduler(waiting, constants, legal, [latest_ms[task.name] - clock for task in waiting])
        responses_ms = gpu(released)
        ends += [clock + response_ms for response_ms in responses_ms]
        clock += max(responses_ms)
        paired += len(released) if len(released) > 1 else 0
        memory += sum(each.task.footprint_bytes(each.policy) for each in released)
        for each in released:
            waiting.remove(each.task)
    busy = sum(task.execution_ms for task in tasks) / clock
    return Served(clock, statistics.fmean(ends), busy, memory, paired)
