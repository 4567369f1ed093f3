"""Describes what a task does with memory that both CPU and GPU use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch of a kernel. Only bytes in memory of the policy count.

    Attributes:
        accessed_bytes: S_i, the bytes that it reads or writes, each counted once.
        written_bytes: B_write^i, the bytes that it changes.
        after_host: True if the CPU touched the data since the kernel before, so the cache is dirty. N_c counts these.
        cached_bytes: tau * N_L2 in bytes: what it reads again and, under policy D, finds in the GPU's L2 cache.
        latency_hidden: True if enough of it runs in parallel to hide the latency of memory (Eq. 7).
    """

    accessed_bytes: int
    written_bytes: int = 0
    after_host: bool = True
    cached_bytes: int = 0
    latency_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One run of an application, for example one batch.

    Attributes:
        name: for people.
        to_device_bytes: B_hd, the data that the GPU gets from the CPU.
        to_host_bytes: B_dh, the data that the CPU gets from the GPU.
        kernels: K, the N_k kernels in the order of their launches.
        copies: N_m, the number of copies under policy D.
        fresh_host: True if data that comes to the host goes to memory that was never touched, which costs l_ini.
        execution_ms: the time of the kernels alone, with all memory on the GPU and in place.

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
        for name in ("accessed_bytes", "written_bytes", "cached_bytes"):
            numbers[f"a kernel's {name}"] = min((getattr(kernel, name) for kernel in self.kernels), default=0)
        for name, number in numbers.items():
            if number < 0:
                raise ConfigurationError(f"Task {self.name}: {name} is {number}; it takes 0 or more.")

    @property
    def data_bytes(self) -> int:
        """The bytes that both sides see."""
        return self.to_device_bytes + self.to_host_bytes

    def footprint_bytes(self, policy: Policy) -> int:
        """Returns the memory that the task's data takes, on both sides together (§II-B)."""
        return policy.footprint_bytes(self.data_bytes)


def feature_task(nbytes: int, name: str = "features") -> Task:
    """Returns the task of a slot's features: the GPU writes a slot that the CPU read before, and the CPU reads it."""
    kernel = Kernel(nbytes, written_bytes=nbytes)
    return Task(name, to_device_bytes=0, to_host_bytes=nbytes, kernels=(kernel,), copies=1)


def batch_task(name: str, image_bytes: int, feature_bytes: int, execution_ms: float) -> Task:
    """Returns the task of a batch: the GPU reads images from the CPU, and the CPU reads features from the GPU."""
    kernels = Kernel(image_bytes), Kernel(feature_bytes, written_bytes=feature_bytes)
    return Task(
        name,
        to_device_bytes=image_bytes,
        to_host_bytes=feature_bytes,
        kernels=kernels,
        copies=2,
        execution_ms=execution_ms,
    )
