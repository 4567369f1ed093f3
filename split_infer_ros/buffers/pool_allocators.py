"""Gives torch allocators of managed and page-locked memory, for pools in which torch keeps tensors."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from split_infer_ros.buffers.managed_bytes import MANAGED_BYTES
from split_infer_ros.buffers.native_library import native_library
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime import cuda

_SOURCE = Path(__file__).with_suffix(".c")
# The functions in ``struct Runtime`` of the C file, by CUDA's names.
_RUNTIME = (
    *("cudaMallocManaged", "cudaHostAlloc", "cudaFree", "cudaFreeHost", "cudaMemGetInfo"),
    *("cudaThreadExchangeStreamCaptureMode", "cudaGetLastError", "cudaDeviceGetAttribute", "cudaMemset"),
    "cudaStreamSynchronize",
)
_FUNCTIONS = {
    Policy.MANAGED: ("split_infer_allocate_managed", "split_infer_free_managed"),
    Policy.PINNED: ("split_infer_allocate_pinned", "split_infer_free_pinned"),
}
POOLED = frozenset(_FUNCTIONS)  # the policies for which this package gives torch an allocator


@cache
def pool_allocator(policy: Policy) -> Any:
    """Returns torch's handle of the allocator for a policy in ``POOLED``. The handle lives as long as the process.

    Raises:
        ConfigurationError: this torch has no memory pools for single threads, or the allocators' library cannot be
            found or compiled.
    """
    import torch  # only here, because only a GPU has such pools

    if not hasattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool"):
        raise ConfigurationError(
            f"torch {torch.__version__} has no memory pools for single threads: take torch 2.9 or later."
        )
    path = native_library(_SOURCE)
    _use_runtime(path)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), *_FUNCTIONS[policy])
    handle = allocator.allocator()  # type: ignore[no-untyped-call]
    # A pool frees its memory when its last tensor goes, which may be as late as the interpreter's end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
    return handle


def _use_runtime(path: Path) -> None:
    """Tells the library the addresses of CUDA's functions, and of the count of managed memory outside of pools."""
    functions, library = cuda.library(), ctypes.CDLL(str(path))
    fields = [ctypes.cast(getattr(functions, name), ctypes.c_void_p) for name in _RUNTIME]
    fields.append(ctypes.c_void_p(MANAGED_BYTES.address))
    library.split_infer_use_runtime((ctypes.c_void_p * len(fields))(*fields))
    library.split_infer_untouched_bytes.restype = ctypes.c_longlong
    MANAGED_BYTES.count_pools(library.split_infer_untouched_bytes)
