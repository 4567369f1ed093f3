"""Replaces the machine's GPU by a simulated one while a test runs."""

from __future__ import annotations

import functools
import gc
import importlib
import queue
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo  # which looks at torch's functions once, and is not to see what stands in for them

from simulated_gpu.cuda_runtime import Runtime
from simulated_gpu.gpu import Gpu
from simulated_gpu.host_threads import Published, joining, lock_classes, remembering, starting
from simulated_gpu.memory_pools import runtime_library
from simulated_gpu.operators import Simulation
from simulated_gpu.tensors import GpuTensor
from simulated_gpu.torch_api import torch_api
from split_infer_ros.runtime import cuda, streams

_PACKAGE = "split_infer_ros"
_BINDING = "cuda.bindings.runtime"
# Read without a lock by a thread that then gives the device work: safe under the interpreter's lock.
_PUBLISHED = {f"{_PACKAGE}.weight_streaming.prefetcher.WeightPrefetcher": ("_chunks_read",)}
_torch_as_tensor = torch.as_tensor
_torch_tensor = torch.tensor
_torch_same_type = torch._has_compatible_shallow_copy_type


@contextmanager
def simulated(gpu: Gpu | None = None) -> Iterator[Gpu]:
    """Runs everything that uses ``cuda`` inside the ``with`` block on a simulated GPU, which it yields.

    Args:
        gpu: the simulated GPU; None makes one.

    Raises:
        AssertionError: at the end, if there was a race, or if a real GPU would have refused a call. A test that
            expects such findings must remove them from the GPU before.
    """
    gpu = gpu or Gpu()
    runtime = Runtime(gpu, importlib.import_module(_BINDING))
    gpu.runtime = runtime
    torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]
    with _patched(gpu, runtime), Simulation(gpu):
        gc.collect()
        gc.freeze()  # each recording collects garbage, and need not search what was there before
        try:
            yield gpu
            gpu.processor.finish_all()
        except BaseException:
            print(gpu.findings())  # which may well be the reason
            raise
        finally:
            runtime.end()
    gpu.assert_clean()


@contextmanager
def _patched(gpu: Gpu, runtime: Runtime) -> Iterator[None]:
    from contextlib import ExitStack

    with lock_classes(gpu) as (lock, reentrant), ExitStack() as stack:

        def replace(owner: Any, name: str, value: object) -> None:
            stack.enter_context(patch.object(owner, name, value, create=True))  # a build without CUDA lacks some

        api, library = torch_api(gpu), runtime_library(gpu)
        stack.callback(library.end)
        replace(torch._C, "_cuda_endAllocateToPool", vars(api).pop("end_allocate"))
        replace(torch._C, "_cuda_releasePool", vars(api).pop("release_pool"))
        replace(torch._C, "_cuda_customAllocator", vars(api).pop("custom_allocator"))
        replace(torch._C, "_cuda_beginAllocateCurrentThreadToPool", None)  # which says that this torch has it
        for name, value in vars(api).items():
            replace(torch.cuda, name, value)
        replace(torch.cuda.nvtx, "range", lambda *_, **__: nullcontext())
        replace(torch, "as_tensor", _as_tensor(runtime))
        replace(torch, "_has_compatible_shallow_copy_type", _same_type)
        stack.callback(sys.modules.__setitem__, _BINDING, sys.modules[_BINDING])
        sys.modules[_BINDING] = runtime  # not by patch.dict, which would forget what is imported meanwhile
        stack.enter_context(patch.dict(streams._IDLE, clear=True))  # streams of another GPU
        replace(torch, "tensor", _tensor)
        replace(threading.Thread, "start", starting(gpu, threading.Thread.start, lambda: Simulation(gpu)))
        replace(threading.Thread, "join", joining(gpu, threading.Thread.join))
        replace(threading, "Lock", lock)
        replace(threading, "RLock", reentrant)
        replace(queue, "SimpleQueue", queue._PySimpleQueue)  # type: ignore[attr-defined]
        watched: dict[int, Any] = {}
        modules = _package_modules()
        stack.callback(_forget_gpu, modules, watched)
        for module in modules:
            for name, value in list(vars(module).items()):
                if isinstance(value, functools._lru_cache_wrapper):
                    value.cache_clear()
                    stack.callback(value.cache_clear)
                    replace(module, name, watched.setdefault(id(value), remembering(gpu, value)))
                elif value is _simple_queue:
                    replace(module, name, queue._PySimpleQueue)  # type: ignore[attr-defined]
                elif isinstance(value, _lock_types):
                    replace(module, name, lock() if isinstance(value, _lock_types[0]) else reentrant())
        replace(cuda, "library", lambda: library)
        for path, names in _PUBLISHED.items():
            module_name, _, class_name = path.rpartition(".")
            owner = getattr(importlib.import_module(module_name), class_name)
            for name in names:
                stack.enter_context(patch.object(owner, name, Published(gpu, name), create=True))
        _watch_reads(gpu, replace)
        yield


def _forget_gpu(known: Sequence[ModuleType], watched: Mapping[int, Any]) -> None:
    """Lets go of the GPU in modules that were imported while it was simulated.

    Args:
        known: the modules that were imported before.
        watched: what stood in for cached functions.
    """
    substitutes = {id(each): each.__wrapped__ for each in watched.values()}
    for module in _package_modules():
        for name, value in list(vars(module).items()) if module not in known else ():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
            elif id(value) in substitutes:
                setattr(module, name, substitutes[id(value)])


_simple_queue = queue.SimpleQueue
_lock_types = (type(threading.Lock()), type(threading.RLock()))


def _as_tensor(runtime: Runtime) -> Any:
    def as_tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        if hasattr(data, "__cuda_array_interface__") and not isinstance(data, torch.Tensor):
            return runtime.as_tensor(data)
        return _torch_as_tensor(data, *args, **kwargs)

    return as_tensor


def _tensor(data: Any, *, device: Any = None, **kwargs: Any) -> torch.Tensor:
    """Replaces torch's function, which looks for the GPU's driver before any mode sees the call."""
    made = _torch_tensor(data, **kwargs)
    return made if device is None else made.to(device)


def _same_type(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Makes modules replace a parameter that moves to the simulated GPU, because its data cannot be replaced."""
    return not isinstance(other, GpuTensor) and _torch_same_type(one, other)


def _watch_reads(gpu: Gpu, replace: Any) -> None:
    """Notes that the host writes to a buffer when a file is read into it without torch."""
    from split_infer_ros.weight_streaming.weights_file import WeightsFile

    read, check = WeightsFile.read, WeightsFile.check

    def read_watched(file: WeightsFile, offset: int, into: memoryview, layer: str) -> None:
        gpu.host_touches(torch.frombuffer(into, dtype=torch.uint8), writes=True)
        read(file, offset, into, layer)

    def check_watched(file: WeightsFile, block: Any, place: memoryview) -> None:
        gpu.host_touches(torch.frombuffer(place, dtype=torch.uint8), writes=False)
        check(file, block, place)

    replace(WeightsFile, "read", read_watched)
    replace(WeightsFile, "check", check_watched)


def _package_modules() -> list[Any]:
    return [module for name, module in list(sys.modules.items()) if name.split(".")[0] == _PACKAGE]
