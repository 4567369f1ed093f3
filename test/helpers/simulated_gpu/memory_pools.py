"""Simulates ``torch.cuda.MemPool``, and the functions of CUDA that the package's own allocators call from C."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from simulated_gpu.captures import PoolId
from simulated_gpu.cuda_runtime import Runtime, take_outlived

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu

_KEPT: list[object] = []  # memory may be freed after the simulation, by functions whose addresses C code has

_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_FREE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_RUNTIME_ALLOCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_uint)
_RUNTIME_FREE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_MEMORY_INFO = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
_EXCHANGE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_LAST_ERROR = ctypes.CFUNCTYPE(ctypes.c_int)
_SET_BYTES = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_WAIT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int)


class PoolAllocator:
    """An allocator that consists of two C functions, as torch accepts it.

    Args:
        allocate: the address of ``void *(size_t size, int device, void *stream)``.
        free: the address of ``void (void *address, size_t size, int device, void *stream)``.
    """

    def __init__(self, allocate: int, free: int) -> None:
        self.allocate = _ALLOCATE(allocate)
        self.free = _FREE(free)


class MemPool:
    """A memory pool of torch. Its memory comes from ``allocator``; None for torch's own."""

    gpu: Gpu  # of the subclass that ``torch_api`` makes

    def __init__(self, allocator: PoolAllocator | None = None) -> None:
        self.id: PoolId = self.gpu.new_pool()
        self.gpu.allocator.open_pool(self.id, allocator)

    def __del__(self) -> None:
        if self.gpu.captures or self.gpu.allocator.entered:
            self.gpu.faults.append(
                "A pool of torch was destroyed while a thread allocates from a pool or records: torch ends the process."
            )
        self.gpu.allocator.close_pool(self.id)

    def snapshot(self) -> list[dict[str, Any]]:
        return [each for each in self.gpu.allocator.segments() if each["segment_pool_id"] == self.id]


@contextmanager
def use_mem_pool(gpu: Gpu, pool: MemPool) -> Iterator[None]:
    """Makes the calling thread's tensors lie in a pool inside the ``with`` block. Like torch, refuses a pool in use."""
    with gpu.lock:
        if pool.id in gpu.allocator.entered:
            gpu.fault("beginAllocateToPool: already recording to mempool_id.")
        if gpu.pool_of_thread is not None or gpu.current.capture is not None:
            gpu.fault("A pool was entered inside another one, so torch takes either.")
        gpu.allocator.entered.add(pool.id)
        gpu.pool_of_thread = pool.id
    try:
        yield
    finally:
        with gpu.lock:
            gpu.allocator.entered.remove(pool.id)
            gpu.pool_of_thread = None


def runtime_library(gpu: Gpu) -> SimpleNamespace:
    """Returns functions with the names and C types of CUDA's functions. They call the simulated run-time API.

    ``end`` ends that. The functions stay, but keep neither the GPU nor its memory: they only free what objects still
    hold.
    """
    held: list[Runtime] = [gpu.runtime]  # type: ignore[attr-defined]

    def free(name: str) -> Any:
        def call(address: int) -> int:
            if held:
                return int(getattr(held[0], name)(address)[0])
            take_outlived(address)
            return 0

        return _RUNTIME_FREE(call)

    def allocate(name: str) -> Any:
        def call(address: Any, nbytes: int, flags: int) -> int:
            (runtime,) = held
            capture = runtime.gpu.capture_of_this_thread()
            if capture is not None:
                capture.failure = capture.failure or "page-locked or managed memory was allocated"
                return int(runtime.status("cudaErrorStreamCaptureUnsupported"))
            status, found = getattr(runtime, name)(nbytes, flags)
            address[0] = found or None
            return int(status)

        return _RUNTIME_ALLOCATE(call)

    def memory_info(free: Any, total: Any) -> int:
        status, free[0], total[0] = held[0].cudaMemGetInfo()
        return int(status)

    def attribute(value: Any, number: int, index: int) -> int:
        (runtime,) = held
        status, value[0] = runtime.cudaDeviceGetAttribute(runtime.cudaDeviceAttr(number), index)
        return int(status)

    def exchange(mode: Any) -> int:
        gpu = held[0].gpu
        gpu.capture_mode_of_thread, mode[0] = mode[0], gpu.capture_mode_of_thread
        return 0

    library = SimpleNamespace(
        cudaMallocManaged=allocate("cudaMallocManaged"),
        cudaHostAlloc=allocate("cudaHostAlloc"),
        cudaFree=free("cudaFree"),
        cudaFreeHost=free("cudaFreeHost"),
        cudaMemGetInfo=_MEMORY_INFO(memory_info),
        cudaThreadExchangeStreamCaptureMode=_EXCHANGE(exchange),
        cudaGetLastError=_LAST_ERROR(lambda: 0),
        cudaDeviceGetAttribute=_ATTRIBUTE(attribute),
        cudaMemset=_SET_BYTES(lambda address, value, nbytes: int(held[0].cudaMemset(address, value, nbytes)[0])),
        cudaStreamSynchronize=_WAIT(lambda stream: int(held[0].cudaStreamSynchronize(stream or 0)[0])),
    )
    _KEPT.append(library)
    library.end = held.clear
    return library
