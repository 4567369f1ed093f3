"""Applications that share a GPU under a configuration of paper 003, dispatched one by one or in pairs.

The dispatches run on a GPU (``real_gpu``) or are simulated. A simulated dispatch takes as long as the overhead model
says.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.calibration import CACHED_BLOCK
from split_infer_ros.memory_cost.co_run_schedule import ReleasedTask, co_run_ms, device_ends_ms, release
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead, response_ms
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
_FIXED = {D: Policy.DEVICE, MO: Policy.MANAGED}

Gpu = Callable[[Sequence[ReleasedTask]], Sequence[float]]
"""Runs the released tasks, one or a pair. Returns the ms from the release until each task ends."""


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


def dispatch(
    configuration: Configuration,
    waiting: Sequence[Task],
    constants: MachineConstants,
    legal: Collection[Policy],
    latest_ms: Sequence[float],
) -> Sequence[ReleasedTask]:
    """Returns the tasks that go to the GPU next, each with its policy.

    Under CO, the scheduler chooses them. Under D and MO, it is the first waiting task.

    Args:
        configuration: D, MO or CO.
        waiting: the waiting tasks, the earliest deadline first.
        constants: the constants of the machine.
        legal: the policies from which the scheduler chooses.
        latest_ms: in how many ms from now each waiting task would have ended under device memory.
    """
    if configuration is CO:
        return release(waiting, constants, legal, latest_ms=latest_ms)
    return (ReleasedTask(waiting[0], _FIXED[configuration]),)


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
    configuration: Configuration,
    tasks: Sequence[Task],
    gpu: Gpu,
    constants: MachineConstants,
    legal: Collection[Policy],
) -> Served:
    """Serves all applications, the earliest deadline first. The deadline is the execution time (section IV-B).

    Args:
        configuration: D, MO or CO.
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
        left_ms = [latest_ms[task.name] - clock for task in waiting]
        released = dispatch(configuration, waiting, constants, legal, left_ms)
        responses_ms = gpu(released)
        ends += [clock + response_ms for response_ms in responses_ms]
        clock += max(responses_ms)
        paired += len(released) if len(released) > 1 else 0
        memory += sum(each.task.footprint_bytes(each.policy) for each in released)
        for each in released:
            waiting.remove(each.task)
    busy = sum(task.execution_ms for task in tasks) / clock
    return Served(clock, statistics.fmean(ends), busy, memory, paired)


@dataclass(frozen=True)
class SimulatedGpu:
    """Stands in for a GPU. A task takes as long as the overhead model says.

    Attributes:
        constants: the constants of the simulated machine.
    """

    constants: MachineConstants

    def __call__(self, released: Sequence[ReleasedTask]) -> Sequence[float]:
        """Returns the ms from the release until each task ends."""
        alone_ms = [response_ms(each.task, overhead(each.task, each.policy, self.constants)) for each in released]
        if len(released) == 1:
            return alone_ms
        tasks = {each.policy: each.task for each in released}
        pair_ms = co_run_ms(tasks[Policy.DEVICE], tasks[Policy.MANAGED], self.constants)
        return [
            own_ms if each.policy is Policy.DEVICE else pair_ms for each, own_ms in zip(released, alone_ms, strict=True)
        ]
