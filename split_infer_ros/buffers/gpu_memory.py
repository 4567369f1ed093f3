"""Allocates memory of the policies that need a GPU. The views of such memory are tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.memory import Memory, SwitchableMemory, free_once
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.runtime.shortage import host_bytes_free, shortage
from split_infer_ros.runtime.streams import current_fence


def allocate_switchable(nbytes: int, device: Device) -> SwitchableMemory:
    """Allocates memory that each batch can use under its own policy; see ``allocate_on_gpu``."""
    pinned = allocate_on_gpu(Policy.PINNED, nbytes, device)
    return SwitchableMemory(allocate_on_gpu(Policy.MANAGED, nbytes, device), pinned)


def allocate_on_gpu(policy: Policy, nbytes: int, device: Device) -> Memory:
    """Allocates memory of any policy except ``HOST``; see ``allocate`` in ``memory_allocation``."""
    # Tensors that are made in inference mode cannot be written outside of it, but this memory outlives the mode.
    with torch.inference_mode(False), _sizes_in_errors(policy, nbytes, device):
        return _ALLOCATE[policy](nbytes, device)


def adopt_on_gpu(policy: Policy, host: memoryview, device: Device) -> Memory:
    """Lets a GPU use existing memory under any policy except ``HOST``; see ``adopt`` in ``memory_allocation``."""
    with torch.inference_mode(False), _sizes_in_errors(policy, host.nbytes, device):  # see ``allocate_on_gpu``
        return _ADOPT[policy](torch.frombuffer(host, dtype=torch.uint8), device)


def _allocate_device(nbytes: int, device: Device) -> Memory:
    address, free = cuda.allocate_mapped(nbytes)  # torch would round the size up to a power of two
    return Memory(Policy.DEVICE, _Owner(address, nbytes, free).on_host(), _buffer(nbytes, device))


def _allocate_managed(nbytes: int, device: Device) -> Memory:
    exclusive = not cuda.device_attributes(device.index).concurrent_managed_access
    address, free = cuda.allocate_managed(nbytes, device.index, for_host=exclusive)
    owner = _Owner(address, nbytes, free)
    return Memory(
        policy=Policy.MANAGED,
        host=owner.on_host(),
        device=owner.on_device(device, address),
        exclusive_address=address if exclusive else 0,
    )


def _allocate_pinned(nbytes: int, device: Device) -> Memory:
    address, free = cuda.allocate_mapped(nbytes)
    owner = _Owner(address, nbytes, free)
    return Memory(Policy.PINNED, owner.on_host(), owner.on_device(device, cuda.device_address(address)))


def _adopt_device(host: Tensor, device: Device) -> Memory:
    memory = Memory(Policy.DEVICE, host, _buffer(host.nbytes, device))
    memory.release_with(cuda.register(host.data_ptr(), host.nbytes))
    return memory


def _adopt_managed(host: Tensor, device: Device) -> Memory:
    address = host.data_ptr()  # GPUs that allow this policy reach all memory of the host without registration
    return Memory(Policy.MANAGED, host, _Owner(address, host.nbytes).on_device(device, address))


def _adopt_pinned(host: Tensor, device: Device) -> Memory:
    address, nbytes = host.data_ptr(), host.nbytes
    unregister = cuda.register(address, nbytes)
    memory = Memory(Policy.PINNED, host, _Owner(address, nbytes).on_device(device, cuda.device_address(address)))
    memory.release_with(unregister)
    return memory


def _buffer(nbytes: int, device: Device) -> Tensor:
    """Returns plain memory of the device, uint8 (``nbytes``,). Every stream may use it immediately.

    torch reuses memory of freed tensors, although their stream may still work on it. So this function waits for the
    current stream.
    """
    buffer = torch.empty(nbytes, dtype=torch.uint8, device=device)
    current_fence(device).wait()
    return buffer


_ALLOCATE: dict[Policy, Callable[[int, Device], Memory]] = {
    Policy.DEVICE: _allocate_device,
    Policy.MANAGED: _allocate_managed,
    Policy.PINNED: _allocate_pinned,
}
_ADOPT: dict[Policy, Callable[[Tensor, Device], Memory]] = {
    Policy.DEVICE: _adopt_device,
    Policy.MANAGED: _adopt_managed,
    Policy.PINNED: _adopt_pinned,
}


@contextmanager
def _sizes_in_errors(policy: Policy, nbytes: int, device: Device) -> Iterator[None]:
    """Turns an error of the block into an OutOfMemory that states the requested size and the free size."""
    try:
        yield
    except (RuntimeError, OutOfMemory) as error:
        if is_sticky(error):
            raise
        sides = [shortage(nbytes, host_bytes_free(), "the host")]
        if policy.takes_device_memory and device.type == "cuda":
            with suppress(RuntimeError, AssertionError):  # a GPU in trouble may not answer
                sides.append(f"{device} has {torch.cuda.mem_get_info(device)[0]:,}")
        reason = str(error).partition("\n")[0].rstrip(".")
        raise OutOfMemory(f"{' and '.join(sides)} ({reason})") from error


class _Owner:
    """An allocation that is freed exactly once, when its last view is collected.

    Args:
        address: the address of the memory.
        nbytes: the size of the memory in bytes.
        free: frees the memory; None if something else owns the memory.
    """

    def __init__(self, address: int, nbytes: int, free: Callable[[], None] | None = None) -> None:
        self._address = address
        self._nbytes = nbytes
        if free is not None:
            free_once(self, free)

    def on_host(self) -> Tensor:
        """Returns the CPU's view of the memory, uint8 (nbytes,)."""
        array = (ctypes.c_ubyte * self._nbytes).from_address(self._address)
        array._owner = self  # type: ignore[attr-defined]  # the tensor keeps the array, which keeps the owner
        return torch.frombuffer(array, dtype=torch.uint8)

    def on_device(self, device: Device, address: int) -> Tensor:
        """Returns the GPU's view of the memory, uint8 (nbytes,). ``address`` is where the GPU finds the memory."""
        self.__cuda_array_interface__ = {
            "shape": (self._nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
        return torch.as_tensor(self, device=device)  # without the device, torch would copy
