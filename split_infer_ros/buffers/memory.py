"""One owner for each piece of memory that CPU and GPU share, with a view for either."""

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
    """Which memory, and on which device the backbone uses it."""

    policy: Policy = Policy.HOST
    device: torch.device = CPU


class Memory:
    """Bytes that the CPU sees as ``host`` and the backbone's device as ``device``; freed with the last view of them.

    Args:
        policy: what it is.
        host: uint8 (n,) on the CPU.
        device: uint8 (n,) where the backbone runs; the very same bytes but with policy ``DEVICE``.
        address: of managed memory that CPU and GPU may not touch at the same time; else 0.

    Attributes:
        policy, host, device: as given.
        let_go: to be called before memory is unmapped that was not allocated here.
    """

    def __init__(self, policy: Policy, host: Tensor, device: Tensor, address: int = 0) -> None:
        self.let_go: Callable[[], object] = lambda: None
        self.policy = policy
        self.host = host
        self.device = device
        self._address = address

    def __repr__(self) -> str:
        return f"Memory({self.policy.value}, {self.bytes:,} bytes)"

    @property
    def is_one(self) -> bool:
        """True where both views are of the same bytes, so that nothing is to be copied."""
        return self.policy is not Policy.DEVICE

    @property
    def bytes(self) -> int:
        """All that it takes, on both sides."""
        return self.host.nbytes if self.is_one else self.host.nbytes + self.device.nbytes

    def give_to_device(self) -> None:
        """From here on in the current stream's order the GPU may touch it, and the CPU may not."""
        if self._address:
            cuda.attach(self._address, torch.cuda.current_stream().cuda_stream, to_host=False)

    def give_to_host(self) -> None:
        """Once the current stream has come to this point the CPU may touch it, whatever the GPU does then."""
        if self._address:
            cuda.attach(self._address, torch.cuda.current_stream().cuda_stream, to_host=True)


def allocate(policy: Policy, nbytes: int, device: torch.device) -> Memory:
    """New memory.

    Args:
        policy: which kind; on a CPU all are ``HOST``.
        nbytes: how much.
        device: where the backbone runs.

    Raises:
        OutOfMemory: there is not so much.
        ConfigurationError: this machine has no such memory.
    """
    # Memory outlives the mode in which it is made: what inference mode makes could not be written to outside of it.
    with torch.inference_mode(False), _telling_sizes(policy, nbytes, device):
        return _allocate(policy, nbytes, device)


def _allocate(policy: Policy, nbytes: int, device: torch.device) -> Memory:
    if device.type == "cpu" or policy is Policy.HOST:
        plain = torch.empty(nbytes, dtype=torch.uint8)
        return Memory(Policy.HOST, plain, plain)
    if policy is Policy.DEVICE:
        return Memory(policy, _page_locked(nbytes), torch.empty(nbytes, dtype=torch.uint8, device=device))
    index = device.index
    if policy is Policy.PINNED:
        address, free = cuda.allocate_mapped(nbytes)
        owner = _Owner(address, nbytes, free)
        return Memory(policy, owner.host(), owner.on(device, cuda.device_address(address)))
    exclusive = not cuda.device_attributes(index).concurrent_managed_access
    address, free = cuda.allocate_managed(nbytes, index, for_host=exclusive)
    owner = _Owner(address, nbytes, free)
    return Memory(policy, owner.host(), owner.on(device, address), address if exclusive else 0)


def adopt(policy: Policy, plain: Tensor, device: torch.device) -> Memory:
    """Memory of the host that is there already (shared with another process, say), for a GPU to use.

    Args:
        policy: which kind; on a CPU all are ``HOST``.
        plain: uint8 (n,); begins on a page. Before it is unmapped, ``let_go`` is to be called.
        device: where the backbone runs.

    Raises:
        OutOfMemory: it cannot be page-locked.
    """
    if device.type == "cpu" or policy is Policy.HOST:
        return Memory(Policy.HOST, plain, plain)
    with torch.inference_mode(False), _telling_sizes(policy, plain.nbytes, device):  # as above
        return _adopt(policy, plain, device)


def _adopt(policy: Policy, plain: Tensor, device: torch.device) -> Memory:
    address, nbytes = plain.data_ptr(), plain.nbytes
    if policy is Policy.MANAGED:  # where that is legal, the GPU reaches all memory as it is
        return Memory(policy, plain, _Owner(address, nbytes, None).on(device, address))
    unregister = cuda.register(address, nbytes)
    if policy is Policy.DEVICE:
        memory = Memory(policy, plain, torch.empty(nbytes, dtype=torch.uint8, device=device))
    else:
        memory = Memory(policy, plain, _Owner(address, nbytes, None).on(device, cuda.device_address(address)))
    memory.let_go = once(memory, unregister)
    return memory


@contextmanager
def _telling_sizes(policy: Policy, nbytes: int, device: torch.device) -> Iterator[None]:
    """Whoever runs out of memory inside says how much was asked for, and what is free."""
    try:
        yield
    except (RuntimeError, OutOfMemory) as error:
        if is_sticky(error):
            raise
        sides = [shortage(nbytes, host_bytes_free(), "the host")]
        if policy in (Policy.DEVICE, Policy.MANAGED) and device.type == "cuda":
            with suppress(RuntimeError, AssertionError):  # it may have no time for such a question
                sides.append(f"{device} has {torch.cuda.mem_get_info(device)[0]:,}")
        reason = str(error).partition("\n")[0].rstrip(".")
        raise OutOfMemory(f"{' and '.join(sides)} ({reason})") from error


def once(owner: object, free: Callable[[], None]) -> Callable[[], object]:
    """Calls ``free`` when it is called or ``owner`` goes, whichever is first."""
    finalizer = weakref.finalize(owner, free)
    finalizer.atexit = False  # the end of the process frees everything, and threads may still be at it
    return finalizer


def _page_locked(nbytes: int) -> Tensor:
    address, free = cuda.allocate_mapped(nbytes)  # torch's own would round up to a power of two
    return _Owner(address, nbytes, free).host()


class _Owner:
    """An allocation, freed exactly once: with the last view."""

    def __init__(self, address: int, nbytes: int, free: Callable[[], None] | None) -> None:
        self._address = address
        self._nbytes = nbytes
        if free is not None:
            once(self, free)

    def host(self) -> Tensor:
        """The CPU's view."""
        array = (ctypes.c_ubyte * self._nbytes).from_address(self._address)
        array._owner = self  # type: ignore[attr-defined]  # the tensor keeps the array, and this the memory
        return torch.frombuffer(array, dtype=torch.uint8)

    def on(self, device: torch.device, address: int) -> Tensor:
        """The GPU's view."""
        self.__cuda_array_interface__ = {
            "shape": (self._nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
            "strides": None,
        }
        return torch.as_tensor(self, device=device)  # without device it would be copied
