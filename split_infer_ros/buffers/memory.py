"""Memory that CPU and GPU share. Each piece has one owner, one view for the CPU, and one for the GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.captures import empty_cache
from split_infer_ros.runtime.cuda import FREES
from split_infer_ros.runtime.device import CPU, Device


@dataclass(frozen=True, slots=True)
class Place:
    """Which memory the backbone uses, and on which device.

    Attributes:
        policy: the kind of memory.
        device: the device on which the backbone runs.
        switchable: whether memory of the policy ``device`` must also serve the other policies, batch by batch.
    """

    policy: Policy = Policy.HOST
    device: Device = CPU
    switchable: bool = False


class Memory:
    """A piece of memory. The CPU uses the view ``host``, and the backbone's device uses the view ``device``.

    The memory is freed when neither this object nor a view exists any longer. Adopted memory is existing memory that a
    GPU may use (see ``adopt`` in ``memory_allocation``). It is not freed; only its page-locking ends.

    Args:
        policy: the kind of memory.
        host: uint8 (nbytes,) on the CPU. A tensor if a GPU shares the memory, otherwise an array.
        device: uint8 (nbytes,) on the backbone's device. The same bytes as ``host``, unless the policy needs a copy.
        exclusive_address: the address of managed memory that CPU and GPU may not touch at the same time; otherwise 0.

    Attributes:
        policy, host, device: the arguments.
    """

    def __init__(self, policy: Policy, host: Values, device: Values, exclusive_address: int = 0) -> None:
        self.policy = policy
        self.host = host
        self.device = device
        self._exclusive_address = exclusive_address
        self._unregister: Callable[[], object] | None = None

    def __repr__(self) -> str:
        return f"Memory({self.policy.value}, {self.bytes:,} bytes)"

    @property
    def needs_copy(self) -> bool:
        """True if each view has its own bytes, so that bytes must be copied between CPU and GPU."""
        return self.policy.needs_copy

    @property
    def bytes(self) -> int:
        """The size of the memory in bytes. If each view has its own bytes, both count."""
        return self.policy.footprint_bytes(self.host.nbytes)

    @property
    def is_exclusive(self) -> bool:
        """True if CPU and GPU may not touch the memory at the same time."""
        return bool(self._exclusive_address)

    def give_to_device(self) -> None:
        """Lets only the GPU touch the memory, once the current stream has reached this point."""
        if self._exclusive_address:
            cuda.attach(self._exclusive_address, _current_stream(), cuda.Owner.STREAM)

    def give_to_host(self) -> None:
        """Lets the CPU touch the memory once the current stream has reached this point."""
        if self._exclusive_address:
            cuda.attach(self._exclusive_address, _current_stream(), cuda.Owner.HOST)

    def with_policy(self, policy: Policy) -> Memory | None:
        """Returns the same memory under another policy; None if this memory does not support that policy."""
        return self if policy is self.policy else None

    def release_with(self, unregister: Callable[[], None]) -> None:
        """Sets the function that ends the page-locking of adopted memory.

        ``release`` calls the function. If nobody calls ``release``, the function is called when this object is
        collected. The memory stays mapped until the call.
        """

        def end(mapped: Values = self.host) -> None:
            unregister()

        self._unregister = free_once(self, end)

    def release(self) -> None:
        """Ends the page-locking of adopted memory, and with it the GPU's access. Does nothing for other memory.

        Call it before the memory is unmapped. While a thread records a graph, the method does not wait. The access then
        ends with the recording.
        """
        if self._unregister is not None:
            self._unregister()


class SwitchableMemory(Memory):
    """Memory of the policy ``device`` that can also be used under ``managed`` or ``pinned``, batch by batch.

    The device's half is managed memory, which ``managed`` uses. The host's half is page-locked memory that the GPU can
    reach, which ``pinned`` uses. So three policies take no more memory than ``device`` alone.

    Args:
        managed: the device's half.
        pinned: the host's half, of the same size.
    """

    def __init__(self, managed: Memory, pinned: Memory) -> None:
        super().__init__(Policy.DEVICE, pinned.host, managed.device, managed._exclusive_address)
        self._halves = {half.policy: half for half in (managed, pinned)}

    def with_policy(self, policy: Policy) -> Memory | None:
        """Returns the same memory under another policy. Two batches must not use it at the same time."""
        return self._halves.get(policy, super().with_policy(policy))

    def give_to_device(self) -> None:
        """Lets all streams touch the device's half: one stream computes features, and another stream copies them."""
        if self._exclusive_address:
            cuda.attach(self._exclusive_address, _current_stream(), cuda.Owner.GPU)


def _current_stream() -> int:
    import torch  # only here, because only a GPU has streams

    return int(torch.cuda.current_stream().cuda_stream)


def free_bytes(device: Device) -> int:
    """Returns the free bytes of a GPU's memory. Before, it frees the memory that torch keeps from deleted tensors."""
    import torch  # only here, because only a GPU has memory of its own

    empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free


def free_once(owner: object, free: Callable[[], None]) -> Callable[[], object]:
    """Returns a function that calls ``free``. Only its first call does so.

    If nobody calls the function, ``free`` is called when ``owner`` is collected. While a thread records a graph, the
    call of ``free`` is put off to the end of the recording.
    """
    finalizer = weakref.finalize(owner, FREES.give, free)
    finalizer.atexit = False  # the end of the process frees everything, and threads may still use the memory
    return finalizer
