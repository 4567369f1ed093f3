"""Memory that CPU and GPU share: each piece has one owner and a view for either side."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.faults import is_sticky
from split_infer_ros.runtime.shortage import host_bytes_free, shortage

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Place:
    """Which memory the backbone uses, and on which device.

    Attributes:
        policy: the kind of memory.
        device: where the backbone runs.
    """

    policy: Policy = Policy.HOST
    device: torch.device = CPU


class Memory:
    """Bytes that the CPU sees as ``host`` and the backbone's device as ``device``; freed with the last view of them.

    Args:
        policy: the kind of memory.
        host: uint8 (n,) on the CPU.
        device: uint8 (n,) where the backbone runs. These are the same bytes as ``host`` unless the policy needs a copy.
        exclusive_address: of managed memory that CPU and GPU may not touch at the same time; else 0.

    Attributes:
        policy, host, device: the arguments.
    """

    def __init__(self, policy: Policy, host: Tensor, device: Tensor, exclusive_address: int = 0) -> None:
        self.policy = policy
        self.host = host
        self.device = device
        self._exclusive_address = exclusive_address
        self._unregister: Callable[[], object] | None = None

    def __repr__(self) -> str:
        return f"Memory({self.policy.value}, {self.bytes:,} bytes)"

    @property
    def needs_copy(self) -> bool:
        """True if the two views have bytes of their own, which must be copied from one side to the other."""
        return self.policy.needs_copy

    @property
    def bytes(self) -> int:
        """The memory that both sides take together."""
        return self.policy.footprint_bytes(self.host.nbytes)

    def give_to_device(self) -> None:
        """Lets the GPU touch the memory, and the CPU not, from here on in the current stream's order."""
        if self._exclusive_address:
            cuda.attach(self._exclusive_address, torch.cuda.current_stream().cuda_stream, to_host=False)

    def give_to_host(self) -> None:
        """Lets the CPU touch the memory once the current stream has come to this point."""
        if self._exclusive_address:
            cuda.attach(self._exclusive_address, torch.cuda.current_stream().cuda_stream, to_host=True)

    def release_with(self, unregister: Callable[[], None]) -> None:
        """Sets the function that ends the page-locking of adopted memory.

        It is called in ``release`` or when this object goes, whichever is first.
        """
        self._unregister = call_once(self, unregister)

    def release(self) -> None:
        """Ends the GPU's access to adopted memory. Call this before the memory is unmapped."""
        if self._unregister is not None:
            self._unregister()


def allocate(policy: Policy, nbytes: int, device: torch.device) -> Memory:
    """Allocates memory.

    Args:
        policy: the kind of memory. On a CPU, every kind is ``HOST``.
        nbytes: the size.
        device: where the backbone runs.

    Raises:
        OutOfMemory: there is not enough memory.
        ConfigurationError: this machine has no such memory.
    """
    # Tensors that are made in inference mode cannot be written to outside of it, but memory outlives that mode.
    with torch.inference_mode(False), _sizes_in_errors(policy, nbytes, device):
        return _ALLOCATE[_policy_on(device, policy)](nbytes, device)


def adopt(policy: Policy, host: Tensor, device: torch.device) -> Memory:
    """Lets a GPU use existing memory of the host, for example memory that another process maps as well.

    Args:
        policy: the kind of memory. On a CPU, every kind is ``HOST``.
        host: uint8 (n,), which begins on a page. Call ``release`` before it is unmapped.
        device: where the backbone runs.

    Raises:
        OutOfMemory: the memory cannot be page-locked.
    """
    with torch.inference_mode(False), _sizes_in_errors(policy, host.nbytes, device):  # see ``allocate``
        return _ADOPT[_policy_on(device, policy)](host, device)


def _policy_on(device: torch.device, policy: Policy) -> Policy:
    return Policy.HOST if device.type == "cpu" else policy


def _allocate_host(nbytes: int, device: torch.device) -> Memory:
    return _adopt_host(torch.empty(nbytes, dtype=torch.uint8), device)


def _allocate_device(nbytes: int, device: torch.device) -> Memory:
    address, free = cuda.allocate_mapped(nbytes)  # torch would round the size up to a power of two
    host = _Owner(address, nbytes, free).on_host()
    return Memory(Policy.DEVICE, host, torch.empty(nbytes, dtype=torch.uint8, device=device))


def _allocate_managed(nbytes: int, device: torch.device) -> Memory:
    exclusive = not cuda.device_attributes(device.index).concurrent_managed_access
    address, free = cuda.allocate_managed(nbytes, device.index, for_host=exclusive)
    owner = _Owner(address, nbytes, free)
    return Memory(
        policy=Policy.MANAGED,
        host=owner.on_host(),
        device=owner.on_device(device, address),
        exclusive_address=address if exclusive else 0,
    )


def _allocate_pinned(nbytes: int, device: torch.device) -> Memory:
    address, free = cuda.allocate_mapped(nbytes)
    owner = _Owner(address, nbytes, free)
    return Memory(Policy.PINNED, owner.on_host(), owner.on_device(device, cuda.device_address(address)))


def _adopt_host(host: Tensor, device: torch.device) -> Memory:
    return Memory(Policy.HOST, host, host)


def _adopt_device(host: Tensor, device: torch.device) -> Memory:
    memory = Memory(Policy.DEVICE, host, torch.empty(host.nbytes, dtype=torch.uint8, device=device))
    memory.release_with(cuda.register(host.data_ptr(), host.nbytes))
    return memory


def _adopt_managed(host: Tensor, device: torch.device) -> Memory:
    address = host.data_ptr()  # GPUs that allow this reach all memory of the host as it is
    return Memory(Policy.MANAGED, host, _Owner(address, host.nbytes).on_device(device, address))


def _adopt_pinned(host: Tensor, device: torch.device) -> Memory:
    address, nbytes = host.data_ptr(), host.nbytes
    unregister = cuda.register(address, nbytes)
    memory = Memory(Policy.PINNED, host, _Owner(address, nbytes).on_device(device, cuda.device_address(address)))
    memory.release_with(unregister)
    return memory


_ALLOCATE: dict[Policy, Callable[[int, torch.device], Memory]] = {
    Policy.HOST: _allocate_host,
    Policy.DEVICE: _allocate_device,
    Policy.MANAGED: _allocate_managed,
    Policy.PINNED: _allocate_pinned,
}
_ADOPT: dict[Policy, Callable[[Tensor, torch.device], Memory]] = {
    Policy.HOST: _adopt_host,
    Policy.DEVICE: _adopt_device,
    Policy.MANAGED: _adopt_managed,
    Policy.PINNED: _adopt_pinned,
}


@contextmanager
def _sizes_in_errors(policy: Policy, nbytes: int, device: torch.device) -> Iterator[None]:
    """Turns an error of the block into OutOfMemory that says how much was asked for and how much is free."""
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


def call_once(owner: object, function: Callable[[], None]) -> Callable[[], object]:
    """Returns a function that calls ``function`` once: when it is called or when ``owner`` goes, whichever is first."""
    finalizer = weakref.finalize(owner, function)
    finalizer.atexit = False  # the end of the process frees everything, and threads may still use the memory
    return finalizer


class _Owner:
    """An allocation that is freed exactly once, with the last view of it.

    Args:
        address: of the memory.
        nbytes: its size.
        free: frees the memory; None if something else owns it.
    """

    def __init__(self, address: int, nbytes: int, free: Callable[[], None] | None = None) -> None:
        self._address = address
        self._nbytes = nbytes
        if free is not None:
            call_once(self, free)

    def on_host(self) -> Tensor:
        """Returns the CPU's view."""
        array = (ctypes.c_ubyte * self._nbytes).from_address(self._address)
        array._owner = self  # type: ignore[attr-defined]  # the tensor keeps the array, which keeps the owner
        return torch.frombuffer(array, dtype=torch.uint8)

    def on_device(self, device: torch.device, address: int) -> Tensor:
        """Returns the GPU's view of the memory, which the GPU finds at ``address``."""
        self.__cuda_array_interface__ = {
            "shape": (self._nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
        return torch.as_tensor(self, device=device)  # without the device, torch would copy
