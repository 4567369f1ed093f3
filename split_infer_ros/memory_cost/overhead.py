"""The overhead of a task under each memory policy (§IV-A, Eq. 1 to 8): its response time less its pure GPU time.

Symbols are those of Table III; ``constants`` says how they are named here and where their units had to be mended.
All times are in ms. What depends on a constant that is not known is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.task import Kernel, Task


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a policy costs a task.

    Attributes:
        policy: which.
        idle_ms: I, in which the GPU waits for pages and another task's kernels may run (§IV-B, Fig. 6).
        busy_ms: the rest: copies under D, flushes under M (Ca_cpu and Ca_gpu), accesses past the cache under H (T_c).
    """

    policy: Policy
    idle_ms: float
    busy_ms: float

    @property
    def total_ms(self) -> float:
        """O_D, O_M or O_H."""
        return self.idle_ms + self.busy_ms

    @property
    def recoverable_ms(self) -> float:
        """I - Ca_cpu - Ca_gpu under M, I - T_c under H: the right-hand sides of Eq. 9 and 10."""
        return self.idle_ms - self.busy_ms

    @property
    def known(self) -> bool:
        """False where a constant that it depends on is not known."""
        return not math.isnan(self.total_ms)


def overhead(task: Task, policy: Policy, constants: MachineConstants) -> Overhead:
    """The overhead of a task under a policy."""
    formulas = {Policy.DEVICE: _device, Policy.MANAGED: _managed, Policy.PINNED: _pinned}
    return formulas[policy](task, constants)


def response_ms(task: Task, predicted: Overhead) -> float:
    """The response time of a task: pure execution and overhead."""
    return task.execution_ms + predicted.total_ms


def transfer_ms(nbytes: int, ms_per_byte: float, copies: int = 0, start_ms: float = 0.0) -> float:
    """Time of ``copies`` copies of ``nbytes`` in all: Eq. 1, L + o + G*k + o, as Eq. 2 has it.

    L + o is the start of a copy, Tr_ini; G is the latency of a byte, l_hd or l_dh; the second o is left out, since a
    copy gives the receiver nothing to process.
    """
    return _times(copies, start_ms) + _times(nbytes, ms_per_byte)


def _device(task: Task, constants: MachineConstants) -> Overhead:
    """Eq. 2: O_D = N_m*Tr_ini + (l_dh + l_ini)*B_dh + l_hd*B_hd.

    l_ini counts for memory of the host that was never touched, in ms/byte.
    """
    to_host = constants.to_host_ms_per_byte + (constants.first_touch_ms_per_byte if task.fresh_host else 0.0)
    copies = transfer_ms(task.to_host_bytes, to_host, task.copies, constants.copy_start_ms)
    return Overhead(Policy.DEVICE, 0.0, copies + transfer_ms(task.to_device_bytes, constants.to_device_ms_per_byte))


def _managed(task: Task, constants: MachineConstants) -> Overhead:
    """Eq. 5: O_M = T_l + T_s; of T_l (Eq. 3) the mapping is idle time, all else is flushes.

    Eq. 3: T_l = sum over N_c of (S_i*l_mapping + Ca_cpu). The text has N_c as the size of K, Table III as the number of
    kernels launched with a dirty cache; the latter is meant, since a cache that is clean is not flushed.
    """
    dirty = [kernel for kernel in task.kernels if kernel.after_host]
    mapping = _times(sum(kernel.accessed_bytes for kernel in dirty), constants.managed_mapping_ms_per_byte)
    flushes = _times(len(dirty), constants.cpu_flush_ms)
    return Overhead(Policy.MANAGED, mapping, flushes + sum(_write_back(kernel, constants) for kernel in task.kernels))


def _write_back(kernel: Kernel, constants: MachineConstants) -> float:
    """Eq. 4, of one kernel: B_write^i*l_mem <= Ca_gpu; no more than the whole cache can be out of date."""
    cost = _times(kernel.written_bytes, constants.write_back_ms_per_byte)
    if cost == 0 or math.isnan(cost):
        return cost
    return min(constants.gpu_flush_ms, cost)  # NaN if the bound is not known


def _pinned(task: Task, constants: MachineConstants) -> Overhead:
    """Eq. 8: O_H = T_c + sum over N_k of S_i*l_mapping."""
    accessed = sum(kernel.accessed_bytes for kernel in task.kernels)
    return Overhead(Policy.PINNED, _times(accessed, constants.pinned_mapping_ms_per_byte), _cache_loss(task, constants))


def _cache_loss(task: Task, constants: MachineConstants) -> float:
    """Eq. 6: T_c = sum over K of tau*N_L2*penalty, each kernel with its own; tau*N_L2 in bytes."""
    return sum(_times(kernel.cached_bytes, penalty(kernel, constants)) for kernel in task.kernels)


def penalty(kernel: Kernel, constants: MachineConstants) -> float:
    """Eq. 7: what a byte costs that is not found in the cache, ms: l_mem - l_L2, or 0 where latency is hidden.

    In print it is 0 where IPL*TPL < max, so where *little* runs at once. Latency is hidden by much that does, as the
    text and its source have it: the inequality is taken the other way round.
    """
    if kernel.latency_hidden:
        return 0.0
    return max(constants.memory_ms_per_byte - constants.cache_ms_per_byte, 0.0)


def _times(count: int, constant: float) -> float:
    """What does not happen costs nothing, though its constant be unknown."""
    return count * constant if count else 0.0
