"""Predicts the overhead of a task under each memory policy (paper 003, §IV-A, Eq. 1 to 8).

The overhead is the response time minus the time of the kernels alone. Symbols are those of Table III. The module
``constants`` lists their names in this package and the differences from the paper's units. All times are in ms. A
result is NaN if it depends on an unknown constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from split_infer_ros.buffers.policy import DeviceMapping, Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Kernel, Task


@dataclass(frozen=True, slots=True)
class Overhead:
    """The overhead of a task under a policy.

    Attributes:
        policy: the policy.
        idle_ms: I, the time in which the GPU waits for pages and can run another task's kernels (§IV-B, Fig. 6).
        busy_ms: the rest of the overhead: copies under D, uncached accesses under H (T_c, and the CPU's reads), and
            flushes under M (Ca_cpu, Ca_gpu). Pages that are mapped after the task's own kernels also add to it.
    """

    policy: Policy
    idle_ms: float
    busy_ms: float

    @property
    def total_ms(self) -> float:
        """The whole overhead: O_D, O_M or O_H."""
        return self.idle_ms + self.busy_ms

    @property
    def recoverable_ms(self) -> float:
        """The loss for which other tasks can make up in the idle time, if a task is switched to this policy.

        It is I - Ca_cpu - Ca_gpu for M (Eq. 9), and I - T_c for H (Eq. 10).
        """
        return self.idle_ms - self.busy_ms

    @property
    def is_known(self) -> bool:
        """True if all constants that the overhead depends on are known."""
        return not math.isnan(self.total_ms)


def overhead(task: Task, policy: Policy, constants: MachineConstants) -> Overhead:
    """Predicts the overhead of a task under D, M or H on a machine with these constants."""
    idle_ms, busy_ms = _FORMULAS[policy.mapping](task, constants)
    return Overhead(policy, idle_ms, busy_ms)


def response_ms(task: Task, predicted: Overhead) -> float:
    """Returns the response time of a task in ms: the time of its kernels alone plus the predicted overhead."""
    return task.execution_ms + predicted.total_ms


def transfer_ms(nbytes: int, ms_per_byte: float, copies: int = 0, start_ms: float = 0.0) -> float:
    """Returns the time of copies in ms (Eq. 1: L + o + G*k + o, in the form of Eq. 2).

    L + o is the start of a copy, Tr_ini. G is the latency of a byte, l_hd or l_dh. The second o is omitted, because the
    receiver of a copy has nothing to process.

    Args:
        nbytes: the bytes of all copies together.
        ms_per_byte: the latency of a byte.
        copies: how many copies there are.
        start_ms: the time that the start of one copy takes.
    """
    return _times(copies, start_ms) + _times(nbytes, ms_per_byte)


def _copied(task: Task, constants: MachineConstants) -> tuple[float, float]:
    """Eq. 2: O_D = N_m*Tr_ini + (l_dh + l_ini)*B_dh + l_hd*B_hd.

    l_ini, in ms/byte, counts only if the copy goes to host memory that was never touched.
    """
    to_host_ms_per_byte = constants.to_host_ms_per_byte + (
        constants.first_touch_ms_per_byte if task.fresh_host else 0.0
    )
    copies_ms = transfer_ms(
        task.to_host_bytes, to_host_ms_per_byte, copies=task.copies, start_ms=constants.copy_start_ms
    ) + transfer_ms(task.to_device_bytes, constants.to_device_ms_per_byte)
    return 0.0, copies_ms


def _migrated(task: Task, constants: MachineConstants) -> tuple[float, float]:
    """Eq. 5: O_M = T_l + T_s. The mapping in T_l (Eq. 3) is idle time if other tasks can use it. The rest is busy time.

    Eq. 3: T_l = sum over N_c of (S_i*l_mapping + Ca_cpu). In the paper's text, N_c is the size of K. In Table III it is
    the number of kernels launched with a dirty cache. This function follows Table III: a clean cache is not flushed.
    """

    def mapping_ms(overlapped: bool) -> float:
        kernels = [kernel for kernel in task.kernels if kernel.overlapped is overlapped]
        mapped_bytes = sum(kernel.launches * kernel.mapped_bytes for kernel in kernels)
        return _times(mapped_bytes, constants.managed_mapping_ms_per_byte)

    dirty_launches = sum(kernel.launches for kernel in task.kernels if kernel.mapped_bytes)
    flushes_ms = _times(dirty_launches, constants.cpu_flush_ms)
    return mapping_ms(True), mapping_ms(False) + flushes_ms + _written_back(task, constants)


def _written_back(task: Task, constants: MachineConstants) -> float:
    """Eq. 4: T_s = sum over N_k of B_write^i*l_mem <= N_k*Ca_gpu, because at most the whole cache is out of date.

    The bound holds for each kernel. If the bound is infinite, pages move between two memories. A page then moves back
    once, however many kernels changed it, and at most B_dh bytes move.
    """
    if math.isinf(constants.gpu_flush_ms):
        written_bytes = sum(kernel.launches * kernel.written_bytes for kernel in task.kernels)
        return _times(min(written_bytes, task.to_host_bytes), constants.write_back_ms_per_byte)
    return sum(_times(kernel.launches, _flushed(kernel, constants)) for kernel in task.kernels)


def _flushed(kernel: Kernel, constants: MachineConstants) -> float:
    """Returns how long the changes of one launch take to leave the cache, in ms."""
    cost = _times(kernel.written_bytes, constants.write_back_ms_per_byte)
    if cost == 0 or math.isnan(cost):
        return cost
    return min(constants.gpu_flush_ms, cost)  # NaN if the bound is unknown


def _direct(task: Task, constants: MachineConstants) -> tuple[float, float]:
    """Eq. 8: O_H = T_c + sum over N_k of S_i*l_mapping. The CPU's reads of the results past its cache add to it.

    Eq. 8 leaves these reads out. The paper's text names them as a reason to prefer D or M.
    """
    accessed_bytes = sum(kernel.launches * kernel.accessed_bytes for kernel in task.kernels)
    busy_ms = _cache_loss(task, constants) + _times(task.to_host_bytes, constants.uncached_read_ms_per_byte)
    return _times(accessed_bytes, constants.pinned_mapping_ms_per_byte), busy_ms


def _cache_loss(task: Task, constants: MachineConstants) -> float:
    """Eq. 6: T_c = sum over K of tau*N_L2*penalty, where tau*N_L2 is in bytes and each kernel has its own penalty."""
    return sum(_times(kernel.launches * kernel.cached_bytes, penalty(kernel, constants)) for kernel in task.kernels)


def penalty(kernel: Kernel, constants: MachineConstants) -> float:
    """Returns the cost of a byte that is not in the cache, in ms (Eq. 7): l_mem - l_L2, or 0 if latency is hidden.

    In the printed Eq. 7, the cost is 0 if IPL*TPL < max, that is if *little* runs in parallel. But latency is hidden if
    much runs in parallel, as the paper's text and its source say. So the inequality is reversed here.
    """
    if kernel.latency_hidden:
        return 0.0
    return max(constants.memory_ms_per_byte - constants.cache_ms_per_byte, 0.0)


def _times(count: int, constant: float) -> float:
    """Returns ``count * constant``. A count of 0 costs nothing, even if the constant is unknown (NaN)."""
    return count * constant if count else 0.0


# The formula of each mapping. A formula returns idle_ms and busy_ms.
_FORMULAS: dict[DeviceMapping, Callable[[Task, MachineConstants], tuple[float, float]]] = {
    DeviceMapping.COPIED: _copied,
    DeviceMapping.MIGRATED: _migrated,
    DeviceMapping.DIRECT: _direct,
}
