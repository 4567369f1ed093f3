"""The one place that calls CUDA's run-time API for memory: allocation, page-locking, attributes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any

from split_infer_ros.buffers.policy import DeviceAttributes
from split_infer_ros.errors import ConfigurationError

_ATTRIBUTES = {
    "integrated": "cudaDevAttrIntegrated",
    "managed_memory": "cudaDevAttrManagedMemory",
    "concurrent_managed_access": "cudaDevAttrConcurrentManagedAccess",
    "can_map_host_memory": "cudaDevAttrCanMapHostMemory",
    "host_register_supported": "cudaDevAttrHostRegisterSupported",
    "pageable_memory_access": "cudaDevAttrPageableMemoryAccess",
}


class OutOfMemory(ConfigurationError):
    """The GPU, or the host's page-locked memory, has no room."""


@cache
def device_attributes(index: int) -> DeviceAttributes:
    """What GPU ``index`` allows."""
    runtime = _runtime()
    return DeviceAttributes(
        **{
            field: bool(_call("cudaDeviceGetAttribute", getattr(runtime.cudaDeviceAttr, name), index))
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
    _call("cudaSetDevice", index)
    free, _ = _call("cudaMemGetInfo")
    if nbytes > free:
        raise OutOfMemory(f"{nbytes:,} bytes of managed memory do not fit into the {free:,} that GPU {index} has free.")
    runtime = _runtime()
    flag = runtime.cudaMemAttachHost if for_host else runtime.cudaMemAttachGlobal
    address = int(_call("cudaMallocManaged", nbytes, flag))
    return address, lambda: _free("cudaFree", address)


def allocate_mapped(nbytes: int) -> tuple[int, Callable[[], None]]:
    """Page-locked memory of the host that GPUs reach at the same address: that address, and what frees it.

    Raises:
        OutOfMemory: so much cannot be page-locked.
    """
    runtime = _runtime()
    address = int(_call("cudaHostAlloc", nbytes, runtime.cudaHostAllocMapped | runtime.cudaHostAllocPortable))
    return address, lambda: _free("cudaFreeHost", address)


def register(address: int, nbytes: int) -> Callable[[], None]:
    """Page-lock memory that is there already and let GPUs reach it; returns what undoes this, before it is unmapped.

    Raises:
        OutOfMemory: so much cannot be page-locked.
    """
    runtime = _runtime()
    _call("cudaHostRegister", address, nbytes, runtime.cudaHostRegisterMapped | runtime.cudaHostRegisterPortable)
    return lambda: _free("cudaHostUnregister", address)


def device_address(address: int) -> int:
    """Where GPUs find mapped memory of the host."""
    return int(_call("cudaHostGetDevicePointer", address, 0))


def attach(address: int, stream: int, to_host: bool) -> None:
    """In the order of ``stream``, give managed memory to the CPU alone, or to that stream alone.

    Where ``concurrentManagedAccess`` is 0 the CPU must not touch what is not its own while the GPU is at work.
    """
    runtime = _runtime()
    flag = runtime.cudaMemAttachHost if to_host else runtime.cudaMemAttachSingle
    _call("cudaStreamAttachMemAsync", stream, address, 0, flag)


def _call(name: str, *arguments: Any) -> Any:
    runtime = _runtime()
    status, *results = getattr(runtime, name)(*arguments)
    if status == runtime.cudaError_t.cudaSuccess:
        return results[0] if len(results) == 1 else results
    runtime.cudaGetLastError()  # else torch would meet it at its next call
    _, text = runtime.cudaGetErrorString(status)
    message = f"{name} failed: {text.decode() if isinstance(text, bytes) else text}."
    if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
        raise OutOfMemory(message)
    raise ConfigurationError(message)


def _free(name: str, address: int) -> None:
    """Errors tell of a context that is gone, and the memory with it."""
    getattr(_runtime(), name)(address)


@cache
def _runtime() -> Any:
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise ConfigurationError(
            f"Memory that CPU and GPU share needs the package cuda-bindings ({error}): pip install cuda-bindings."
        ) from error
