"""The one place that calls CUDA's run-time API, through NVIDIA's own binding."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from split_infer_ros.errors import ConfigurationError


class OutOfMemory(ConfigurationError):
    """The GPU, or the host's page-locked memory, has no room."""


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the run-time API and returns its result, a list where there are several, None for none.

    Args:
        name: of the function, as CUDA has it.
        arguments: as the binding takes them.

    Raises:
        OutOfMemory: there is not so much memory.
        ConfigurationError: any other error; the sentence names the function.
    """
    runtime = binding()
    status, *results = getattr(runtime, name)(*arguments)
    if status == runtime.cudaError_t.cudaSuccess:
        return results[0] if len(results) == 1 else results or None
    runtime.cudaGetLastError()  # else torch would meet it at its next call
    _, text = runtime.cudaGetErrorString(status)
    message = f"{name} failed: {text.decode() if isinstance(text, bytes) else text}."
    if status == runtime.cudaError_t.cudaErrorMemoryAllocation:
        raise OutOfMemory(message)
    raise ConfigurationError(message)


def try_call(name: str, *arguments: Any) -> None:
    """Calls a function that gives something back. An error means that the context is gone, and all it held with it."""
    getattr(binding(), name)(*arguments)


@cache
def binding() -> Any:
    """The module ``cuda.bindings.runtime``.

    Raises:
        ConfigurationError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ImportError as error:
        raise ConfigurationError(
            f"Work on a GPU needs the package cuda-bindings ({error}): pip install cuda-bindings."
        ) from error
