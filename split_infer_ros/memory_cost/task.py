"""What a task does with memory that both CPU and GPU use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch of a kernel; all bytes are of the memory that the policy is about.

    Attributes:
        accessed_bytes: S_i, what it reads or writes, each byte counted once.
        written_bytes: B_write^i, what it changes.
        after_host: launched with a dirty cache: the CPU touched the data since the kernel before. Those count in N_c.
        cached_bytes: what it reads again and, under policy D, finds in the GPU's L2 cache: tau * N_L2, in bytes.
        latency_hidden: so much of it runs at once that the latency of memory does not show (Eq. 7).
    """

    accessed_bytes: int
    written_bytes: int = 0
    after_host: bool = True
    cached_bytes: int = 0
    latency_hidden: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One run of an application: a batch, say.

    Attributes:
        name: for people.
        to_device_bytes: B_hd, data that the GPU gets of the CPU.
        to_host_bytes: B_dh, data that the CPU gets of the GPU.
        kernels: K, N_k of them, in the order of their launches.
        copies: N_m, calls that copy, under policy D.
        fresh_host: what comes to the host goes to memory that was never touched, and costs l_ini there.
        execution_ms: of the GPU alone, all memory being its own and in place.

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
        """What both sides see."""
        return self.to_device_bytes + self.to_host_bytes

    def footprint_bytes(self, policy: Policy) -> int:
        """Memory for its data: under D there is a copy on either side (§II-B)."""
        return self.data_bytes * (2 if policy is Policy.DEVICE else 1)


def feature_task(nbytes: int, name: str = "features") -> Task:
    """The GPU writes a slot of a pool, which the CPU has read before; the CPU reads it."""
    return Task(name, 0, nbytes, (Kernel(nbytes, written_bytes=nbytes),), copies=1)


def batch_task(name: str, image_bytes: int, feature_bytes: int, execution_ms: float) -> Task:
    """The CPU writes a batch of images, which the GPU reads; the GPU leaves features, which the CPU reads."""
    kernels = Kernel(image_bytes), Kernel(feature_bytes, written_bytes=feature_bytes)
    return Task(name, image_bytes, feature_bytes, kernels, copies=2, execution_ms=execution_ms)


def staging_task(nbytes: int, name: str = "staging") -> Task:
    """The CPU writes a batch of images; the GPU reads them."""
    return Task(name, nbytes, 0, (Kernel(nbytes),), copies=1)
