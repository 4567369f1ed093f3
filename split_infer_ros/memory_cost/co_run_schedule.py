"""Decides what goes to the GPU next: one task or a co-run pair, and under which policies (paper 003, §IV-B, Fig. 7).

A task under managed memory leaves the GPU idle while its pages are mapped. The kernels of another task, under device
memory, fit into that idle time. A task's policy depends on what else waits, so it may be another one each time.

A release is what goes to the GPU at once. Of all possible releases, the one that leaves most memory free is chosen. If
several leave as much, the quickest is chosen. Guidelines 1 and 2 for switching policies hold (see ``assignment``). No
task ends later than if all ran under device memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.assignment import candidate, max_switched_kernels, recovers, switch_target
from split_infer_ros.memory_cost.choose import choose
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead, response_ms
from split_infer_ros.memory_cost.switches import all_in_time, best_switches
from split_infer_ros.memory_cost.task import Task


@dataclass(frozen=True, slots=True)
class ReleasedTask:
    """A task that goes to the GPU now, and its memory policy."""

    task: Task
    policy: Policy


Release = tuple[ReleasedTask, ...]
"""The tasks that go to the GPU at once: the first of the queue, and possibly another one with which it is co-run."""


def release(
    waiting: Sequence[Task],
    constants: MachineConstants,
    legal: Collection[Policy] = POLICIES,
    *,
    latest_ms: Sequence[float] | None = None,
    partners: Collection[int] | None = None,
) -> Release:
    """Returns the tasks that go to the GPU now: the first one alone, or the first one co-run with another one.

    Args:
        waiting: the waiting tasks in the order in which they run; at least one.
        constants: the machine's constants.
        legal: the policies to choose from.
        latest_ms: when each task must have ended, in ms from now. None means the times of ``device_ends_ms``.
        partners: indices in ``waiting`` of the tasks that may be co-run with the first one. None means all others.

    Raises:
        ConfigurationError: no policy is legal.
    """
    queue = _Queue(waiting, constants, legal, latest_ms or device_ends_ms(waiting, constants))
    options = [queue.alone()]
    if Policy.DEVICE in legal and Policy.MANAGED in legal:
        for index in range(1, len(waiting)) if partners is None else sorted(partners):
            options += queue.pairs(index)
    return min(options, key=lambda option: (option.footprint_bytes, option.end_ms)).release


def device_ends_ms(tasks: Sequence[Task], constants: MachineConstants) -> list[float]:
    """Returns when each task ends, in ms from now, if all of them run one after the other under device memory."""
    responses_ms = (response_ms(task, overhead(task, Policy.DEVICE, constants)) for task in tasks)
    return list(itertools.accumulate(responses_ms))


def co_run_ms(device: Task, managed: Task, constants: MachineConstants) -> float:
    """Returns the milliseconds from the start of a co-run pair to the end of both tasks (paper 003, Fig. 6).

    This is the sum of both response times, minus the time of the kernels that run in the managed task's idle time.

    Args:
        device: the task under device memory. It runs in the other task's idle time, and ends after its own response
            time.
        managed: the task under managed memory.
        constants: the machine's constants.
    """
    device_overhead = overhead(device, Policy.DEVICE, constants)
    managed_overhead = overhead(managed, Policy.MANAGED, constants)
    hidden_ms = min(device.execution_ms, managed_overhead.idle_ms)
    return response_ms(device, device_overhead) + response_ms(managed, managed_overhead) - hidden_ms


@dataclass(frozen=True, slots=True)
class _Option:
    """A possible release.

    Attributes:
        release: the released tasks, the first task of the queue first.
        footprint_bytes: the memory of all waiting tasks. The tasks that are not released count with their best
            switches.
        end_ms: when the last waiting task ends, in ms from now.
    """

    release: Release
    footprint_bytes: int
    end_ms: float


class _Queue:
    """Holds the waiting tasks. It knows the best policy of each and the policy to which it may be switched."""

    def __init__(
        self, tasks: Sequence[Task], constants: MachineConstants, legal: Collection[Policy], latest_ms: Sequence[float]
    ) -> None:
        self._tasks = tasks
        self._constants = constants
        self._choices = [choose(task, constants, legal) for task in tasks]
        self._targets = [switch_target(choice, legal) for choice in self._choices]
        self._candidates = [
            replace(candidate(task, choice, target), latest_ms=latest)
            for task, choice, target, latest in zip(tasks, self._choices, self._targets, latest_ms, strict=True)
        ]

    def alone(self) -> _Option:
        """Returns the release of the first task alone. The task is switched if the best switches include it."""
        policies = [choice.policy for choice in self._choices]
        switches = best_switches(self._candidates, kernel_limit=self._kernel_limit(policies))
        target = self._targets[0]
        policy = target if 0 in switches.indices and target is not None else policies[0]
        end_ms = sum(each.response_ms for each in self._candidates) + switches.loss_ms
        return _Option((ReleasedTask(self._tasks[0], policy),), self._bytes(policies) - switches.saved_bytes, end_ms)

    def pairs(self, index: int) -> Iterator[_Option]:
        """Yields the releases of the first task with another one: one is under device memory, one under managed memory.

        There are two such releases at most, because either of the two tasks may be under device memory.
        """
        for device, managed in ((0, index), (index, 0)):
            option = self._pair(device, managed)
            if option is not None:
                yield option

    def _pair(self, device: int, managed: int) -> _Option | None:
        """Returns the release of a pair. None if Criterion 1 or 2 of §IV-B, a guideline or a latest end is broken."""
        policies = [choice.policy for choice in self._choices]
        policies[device] = Policy.DEVICE
        kernel_limit = self._kernel_limit(policies)
        is_switched = policies[managed] is Policy.DEVICE
        if is_switched:
            kernel_limit -= self._tasks[managed].num_kernels
        policies[managed] = Policy.MANAGED
        overheads = self._choices[managed].overheads
        device_ms = response_ms(self._tasks[device], self._choices[device].overheads[Policy.DEVICE])
        pair_ms = co_run_ms(self._tasks[device], self._tasks[managed], self._constants)
        behind = [each for index, each in enumerate(self._candidates) if index not in (device, managed)]
        if not (  # an unknown constant is NaN, and every comparison with NaN is false
            self._tasks[device].execution_ms <= overheads[Policy.MANAGED].idle_ms
            and (not is_switched or (kernel_limit >= 0 and recovers(overheads, Policy.MANAGED)))
            and device_ms <= self._candidates[device].latest_ms
            and pair_ms <= self._candidates[managed].latest_ms
            and all_in_time(behind, start_ms=pair_ms)
        ):
            return None
        switches = best_switches(behind, kernel_limit=kernel_limit, start_ms=pair_ms)
        return _Option(
            tuple(ReleasedTask(self._tasks[index], policies[index]) for index in sorted((device, managed))),
            self._bytes(policies) - switches.saved_bytes,
            pair_ms + sum(each.response_ms for each in behind) + switches.loss_ms,
        )

    def _kernel_limit(self, policies: Sequence[Policy]) -> int:
        return max_switched_kernels(list(zip(self._tasks, policies, strict=True)))

    def _bytes(self, policies: Sequence[Policy]) -> int:
        return sum(task.footprint_bytes(policy) for task, policy in zip(self._tasks, policies, strict=True))
