"""Allocates and page-locks CUDA memory, and finds out which kinds of memory a GPU allows."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import cache

from split_infer_ros.buffers.managed_bytes import MANAGED_BYTES
from split_infer_ros.buffers.policy import DeviceAttributes
from split_infer_ros.runtime import cuda

_ATTRIBUTES = {
    "integrated": "cudaDevAttrIntegrated",
    "managed_memory": "cudaDevAttrManagedMemory",
    "concurrent_managed_access": "cudaDevAttrConcurrentManagedAccess",
    "can_map_host_memory": "cudaDevAttrCanMapHostMemory",
    "host_register_supported": "cudaDevAttrHostRegisterSupported",
    "uses_host_page_tables": "cudaDevAttrPageableMemoryAccessUsesHostPageTables",
}


@cache
def device_attributes(index: int) -> DeviceAttributes:
    """Returns the attributes of GPU ``index`` that decide which kinds of memory it allows."""
    runtime = cuda.binding()
    return DeviceAttributes(
        **{
            field: bool(cuda.call("cudaDeviceGetAttribute", getattr(runtime.cudaDeviceAttr, name), index))
            for field, name in _ATTRIBUTES.items()
        }
    )


def l2_cache_bytes(index: int) -> int:
    """Returns the size of the L2 cache of GPU ``index`` in bytes."""
    return int(cuda.call("cudaDeviceGetAttribute", cuda.binding().cudaDeviceAttr.cudaDevAttrL2CacheSize, index))


def allocate_managed(nbytes: int, index: int, for_host: bool) -> tuple[int, Callable[[], None]]:
    """Allocates managed memory, and returns its address and a function that frees it.

    Args:
        nbytes: the size in bytes.
        index: the number of the GPU.
        for_host: True if only the CPU may touch the memory until ``attach`` gives it to another owner. If not, all
            streams may touch it.

    Raises:
        OutOfMemory: the GPU has fewer than ``nbytes`` bytes free. CUDA itself would allocate more than the GPU has,
            which can hang the GPU. With ``concurrentManagedAccess``, a GPU gets pages at the first touch. There,
            managed memory that this process has already must fit as well; see ``managed_bytes``.
    """
    cuda.call("cudaSetDevice", index)
    give_back = MANAGED_BYTES.take(nbytes)  # first, so that two threads cannot both count on the same free memory
    try:
        needed = MANAGED_BYTES.total if device_attributes(index).concurrent_managed_access else nbytes
        free, _ = cuda.call("cudaMemGetInfo")
        if needed > free:
            others = f", beside the {needed - nbytes:,} that this process has," if needed > nbytes else ""
            raise cuda.OutOfMemory(
                f"{nbytes:,} bytes of managed memory{others} do not fit into the {free:,} that GPU {index} has free."
            )
        runtime = cuda.binding()
        flag = runtime.cudaMemAttachHost if for_host else runtime.cudaMemAttachGlobal
        address = int(cuda.call("cudaMallocManaged", nbytes, flag))
    except BaseException:
        give_back()
        raise

    def free_memory() -> None:
        cuda.try_call("cudaFree", address)
        give_back()

    return address, free_memory


def allocate_mapped(nbytes: int) -> tuple[int, Callable[[], None]]:
    """Allocates page-locked memory of the host that GPUs can reach.

    Returns:
        The address on the host, and a function that frees the memory.

    Raises:
        OutOfMemory: ``nbytes`` bytes cannot be page-locked.
    """
    runtime = cuda.binding()
    address = int(cuda.call("cudaHostAlloc", nbytes, runtime.cudaHostAllocMapped | runtime.cudaHostAllocPortable))
    return address, lambda: cuda.try_call("cudaFreeHost", address)


def register(address: int, nbytes: int) -> Callable[[], None]:
    """Page-locks existing memory of the host and lets GPUs reach it.

    Returns:
        A function that ends the page-locking. Call it before the memory is unmapped.

    Raises:
        OutOfMemory: ``nbytes`` bytes cannot be page-locked.
    """
    runtime = cuda.binding()
    cuda.call("cudaHostRegister", address, nbytes, runtime.cudaHostRegisterMapped | runtime.cudaHostRegisterPortable)
    return lambda: cuda.try_call("cudaHostUnregister", address)


def device_address(address: int) -> int:
    """Returns the address at which GPUs reach page-locked memory that the CPU has at ``address``."""
    return int(cuda.call("cudaHostGetDevicePointer", address, 0))


class Owner(enum.Enum):
    """Who may touch managed memory. The values are CUDA's names."""

    HOST = "cudaMemAttachHost"  # the CPU
    STREAM = "cudaMemAttachSingle"  # one stream
    GPU = "cudaMemAttachGlobal"  # all streams; the CPU only while none of them works


def attach(address: int, stream: int, owner: Owner) -> None:
    """Gives managed memory to one owner alone, once a stream has done the work that it was given before.

    If a GPU's attribute ``concurrentManagedAccess`` is 0, the CPU may touch only its own managed memory while the GPU
    works.

    Args:
        address: where the memory begins.
        stream: CUDA's handle of the stream. With ``Owner.STREAM``, this stream becomes the owner.
        owner: who may touch the memory from then on.
    """
    cuda.call("cudaStreamAttachMemAsync", stream, address, 0, getattr(cuda.binding(), owner.value))
