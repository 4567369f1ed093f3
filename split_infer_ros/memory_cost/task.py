"""Describes what a task does with memory that both CPU and GPU use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the GPU, with one or more launches that are all alike.

    Numbers of bytes are those of one launch, and only those in memory of the task's policy. Symbols are paper 003's.

    Attributes:
        accessed_bytes: S_i of Eq. 8, the bytes that a launch reads or writes, each counted once.
        written_bytes: B_write^i, the bytes that a launch changes.
        mapped_bytes: S_i of Eq. 3, the bytes that must be mapped because the CPU touched them since the last launch.
            If it is not 0, the cache is dirty, and the launch is one of the N_c launches of Eq. 3.
        overlapped: True if other tasks' kernels can run while pages are mapped. False if pages are mapped after the
            task's own kernels: a co-run task has ended by then.
        cached_bytes: tau * N_L2 in bytes: the bytes that a launch reads again and, under policy D, finds in the GPU's
            L2 cache.
        latency_hidden: True if enough of the kernel runs in parallel to hide the latency of memory (Eq. 7).
        launches: how many launches there are.
    """

    accessed_bytes: int
    written_bytes: int = 0
    mapped_bytes: int = 0
    overlapped: bool = True
    cached_bytes: int = 0
    latency_hidden: bool = False
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One run of an application, for example one batch. Symbols are paper 003's.

    Attributes:
        name: the task's name, for people.
        to_device_bytes: B_hd, the data that the GPU gets from the CPU.
        to_host_bytes: B_dh, the data that the CPU gets from the GPU.
        kernels: K, the kernels in the order of their launches.
        copies: N_m, the number of copies under policy D.
        fresh_host: True if data for the host goes to memory that was never touched. That costs l_ini.
        execution_ms: the time of the kernels alone, if all data is already in the GPU's memory.

    Raises:
        ConfigurationError: a number is negative.
    """

    name: str
    to_device_bytes: int
    to_host_bytes: int
    kernels: Sequence[Kernel]
    copies: int
    fresh_host: bool = False
    execution_ms: float = 0.0

    def __post_init__(self) -> None:
        numbers = {name: getattr(self, name) for name in ("to_device_bytes", "to_host_bytes", "copies", "execution_ms")}
        for name in ("accessed_bytes", "written_bytes", "mapped_bytes", "cached_bytes", "launches"):
            numbers[f"a kernel's {name}"] = min((getattr(kernel, name) for kernel in self.kernels), default=0)
        for name, number in numbers.items():
            if number < 0:
                raise ConfigurationError(f"Task {self.name}: {name} is {number}; it takes 0 or more.")

    @property
    def num_kernels(self) -> int:
        """N_k, the number of launches."""
        return sum(kernel.launches for kernel in self.kernels)

    @property
    def data_bytes(self) -> int:
        """The bytes that both CPU and GPU use."""
        return self.to_device_bytes + self.to_host_bytes

    def footprint_bytes(self, policy: Policy) -> int:
        """Returns the bytes that the task's data takes under a policy, on host and GPU together (paper 003, §II-B)."""
        return policy.footprint_bytes(self.data_bytes)


def feature_task(nbytes: int, *, num_kernels: int = 1, copies: int = 1, name: str = "features") -> Task:
    """Returns the task of a slot's features: the GPU writes a slot that the CPU read before, and the CPU reads it.

    Args:
        nbytes: the bytes of a slot.
        num_kernels: how many kernels compute the features. Only the last one reaches the slot.
        copies: how many tensors are copied to the host under policy D.
        name: the task's name, for people.
    """
    kernels = Kernel(0, launches=num_kernels - 1), Kernel(nbytes, written_bytes=nbytes, mapped_bytes=nbytes)
    return Task(name, to_device_bytes=0, to_host_bytes=nbytes, kernels=kernels, copies=copies)


def batch_task(
    name: str,
    *,
    image_bytes: int,
    feature_bytes: int,
    kernels: Sequence[Kernel],
    execution_ms: float,
    feature_tensors: int = 1,
) -> Task:
    """Returns the task of a batch: the GPU reads images from the CPU, and the CPU reads features from the GPU.

    The images are mapped before the first kernel, while the GPU can run a co-run task's kernels. The features' slot is
    mapped for the last kernel. The task's own kernels have run by then, so nothing overlaps with this mapping.

    Args:
        name: the task's name, for people.
        image_bytes: the bytes that pre-processing reads. Pre-processing is one kernel and one copy.
        feature_bytes: the bytes that the last kernel writes into the slot.
        kernels: the backbone's kernels; at least one. Each tells what it accesses in memory of the policy.
        execution_ms: the time of all kernels alone.
        feature_tensors: how many tensors the slot has. Each needs a copy of its own.
    """
    *before, last = kernels
    features = replace(
        last,
        accessed_bytes=max(last.accessed_bytes, feature_bytes),
        written_bytes=max(last.written_bytes, feature_bytes),
        mapped_bytes=feature_bytes,
        overlapped=False,
        launches=1,
    )
    before.append(replace(last, launches=last.launches - 1))
    return Task(
        name,
        to_device_bytes=image_bytes,
        to_host_bytes=feature_bytes,
        kernels=(Kernel(image_bytes, mapped_bytes=image_bytes), *before, features),
        copies=1 + feature_tensors,
        execution_ms=execution_ms,
    )
