"""Calls CUDA's run-time API through NVIDIA's binding. No other module calls it."""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.deferred_calls import DeferredCalls

FREES = DeferredCalls()  # calls that free memory; they wait for the whole device, so they could spoil a recording


class OutOfMemory(ConfigurationError):
    """There is not enough memory on the GPU, on the host, or in the host's page-locked part."""


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the run-time API.

    Args:
        name: CUDA's name of the function.
        arguments: the arguments of the binding's function.

    Returns:
        The result of the function, a list if it has several results, or None if it has none.

    Raises:
        OutOfMemory: there is not enough memory.
        ConfigurationError: the function failed for another reason. The message names the function.
    """
    runtime = binding()
    status, *results = getattr(runtime, name)(*arguments)
    if status == runtime.cudaError_t.cudaSuccess:
        return results[0] if len(results) == 1 else results or None
    runtime.cudaGetLastError()  # clears the error; torch would raise it at its next call
    _, text = runtime.cudaGetErrorString(status)
    message = f"{name} failed: {text.decode() if isinstance(text, bytes) else text}."
    if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
        raise OutOfMemory(message)
    raise ConfigurationError(message)


def try_call(name: str, *arguments: Any) -> None:
    """Calls a function that frees something, and ignores its errors.

    An error means that the context is gone, and everything in it is already freed.
    """
    getattr(binding(), name)(*arguments)


@cache
def binding() -> Any:
    """Returns the module ``cuda.bindings.runtime``.

    Raises:
        ConfigurationError: the module is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise ConfigurationError(
            f"Work on a GPU needs the package cuda-bindings ({error}): pip install cuda-bindings."
        ) from error


@cache
def library() -> ctypes.CDLL:
    """Returns CUDA's run-time library, the one that torch uses. Compiled code gets the addresses of its functions.

    Raises:
        ConfigurationError: torch is built without CUDA, or the library is not found.
    """
    import torch  # only here, because processes without a GPU import this module for its errors

    version = torch.version.cuda or ""
    name = "libcudart.so.11.0" if version.startswith("11.") else f"libcudart.so.{version.partition('.')[0]}"
    try:
        return ctypes.CDLL(name)  # torch has loaded the library, so the loader finds it by name
    except OSError as error:
        raise ConfigurationError(
            f"CUDA's run-time library {name} is not found ({error}): install a torch that is built for CUDA."
        ) from error
