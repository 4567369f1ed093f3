"""CUDA's memory: what a GPU allows, allocation, page-locking."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from split_infer_ros.buffers.policy import DeviceAttributes
from split_infer_ros.runtime import cuda

_ATTRIBUTES = {
    "integrated": "cudaDevAttrIntegrated",
    "managed_memory": "cudaDevAttrManagedMemory",
    "concurrent_managed_access": "cudaDevAttrConcurrentManagedAccess",
    "can_map_host_memory": "cudaDevAttrCanMapHostMemory",
    "host_register_supported": "cudaDevAttrHostRegisterSupported",
    "pageable_memory_access": "cudaDevAttrPageableMemoryAccess",
}


@cache
def device_attributes(index: int) -> DeviceAttributes:
    """What GPU ``index`` allows."""
    runtime = cuda.binding()
    return DeviceAttributes(
        **{
            field: bool(cuda.call("cudaDeviceGetAttribute", getattr(runtime.cudaDeviceAttr, name), index))
            for field, name in _ATTRIBUTES.items()
        }
    )


def allocate_managed(nbytes: int, index: int, for_host: bool) -> tuple[int, Callable[[], None]]:
    """Managed memory of GPU ``index``: its address, and what frees it.

    Args:
        nbytes: how much.
        index: of the GPU.
        for_host: it is the CPU's alone until it is attached to a stream.

    Raises:
        OutOfMemory: the GPU has less free than this. More than it has can be allocated, and may hang it.
    """
    cuda.call("cudaSetDevice", index)
    free, _ = cuda.call("cudaMemGetInfo")
    if nbytes > free:
        raise cuda.OutOfMemory(
            f"{nbytes:,} bytes of managed memory do not fit into the {free:,} that GPU {index} has free."
        )
    runtime = cuda.binding()
    flag = runtime.cudaMemAttachHost if for_host else runtime.cudaMemAttachGlobal
    address = int(cuda.call("cudaMallocManaged", nbytes, flag))
    return address, lambda: cuda.try_call("cudaFree", address)


def allocate_mapped(nbytes: int) -> tuple[int, Callable[[], None]]:
    """Page-locked memory of the host that GPUs reach at the same address: that address, and what frees it.

    Raises:
        OutOfMemory: so much cannot be page-locked.
    """
    runtime = cuda.binding()
    address = int(cuda.call("cudaHostAlloc", nbytes, runtime.cudaHostAllocMapped | runtime.cudaHostAllocPortable))
    return address, lambda: cuda.try_call("cudaFreeHost", address)


def register(address: int, nbytes: int) -> Callable[[], None]:
    """Page-lock memory that is there already and let GPUs reach it; returns what undoes this, before it is unmapped.

    Raises:
        OutOfMemory: so much cannot be page-locked.
    """
    runtime = cuda.binding()
    cuda.call("cudaHostRegister", address, nbytes, runtime.cudaHostRegisterMapped | runtime.cudaHostRegisterPortable)
    return lambda: cuda.try_call("cudaHostUnregister", address)


def device_address(address: int) -> int:
    """Where GPUs find mapped memory of the host."""
    return int(cuda.call("cudaHostGetDevicePointer", address, 0))


def attach(address: int, stream: int, to_host: bool) -> None:
    """In the order of ``stream``, give managed memory to the CPU alone, or to that stream alone.

    Where ``concurrentManagedAccess`` is 0 the CPU must not touch what is not its own while the GPU is at work.
    """
    runtime = cuda.binding()
    flag = runtime.cudaMemAttachHost if to_host else runtime.cudaMemAttachSingle
    cuda.call("cudaStreamAttachMemAsync", stream, address, 0, flag)
