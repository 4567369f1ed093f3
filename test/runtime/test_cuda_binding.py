"""Every call that the package makes of CUDA's run-time API, made of the real binding, which needs no driver.

The binding checks names, numbers of arguments, types and flags before it looks for a driver. So a call that is wrong
raises here, and one that is right returns an error of the driver. The package is then told that it succeeded, and goes
on to its next call.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import split_infer_ros
from split_infer_ros.buffers import cuda as memory
from split_infer_ros.buffers import pool_allocators
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime import cuda, streams
from split_infer_ros.telemetry import checkup

runtime = pytest.importorskip("cuda.bindings.runtime", reason="needs cuda-bindings")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a driver would do what is asked here")

# The names in pool_allocators are those of CUDA's own library, which C calls.
SOURCES = [
    path for path in Path(split_infer_ros.__file__).parent.rglob("*.py") if path != Path(pool_allocators.__file__)
]
NAMES = sorted({name for path in SOURCES for name in re.findall(r"\bcuda[A-Z]\w*", path.read_text())})
NO_DRIVER = {runtime.cudaError_t.cudaErrorInsufficientDriver, runtime.cudaError_t.cudaErrorNoDevice}
NO_GPU = 99  # an index that no GPU has, so that nobody else gets the stream
LARGE = 1 << 40  # what calls then seem to give: an address, bytes, a stream
GIVEN = {
    "int": (4096,),
    "bool": (False, True),
    "Owner": tuple(memory.Owner),
}  # what functions of the package are called with, by their annotations


class Recording:
    """The real binding. Its functions are called, and then appear to succeed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []  # with the status that each returned

    def __getattr__(self, name: str) -> Any:
        found = getattr(runtime, name)
        if not is_function(name):
            return found

        def call(*arguments: Any) -> tuple[Any, ...]:
            status, *results = found(*arguments)
            self.calls.append((name, status))
            return (runtime.cudaError_t.cudaSuccess, *(LARGE for _ in results))

        return call


def is_function(name: str) -> bool:
    """Returns whether the binding has a function of a name. Its enumerations are classes."""
    return callable(getattr(runtime, name, None)) and not inspect.isclass(getattr(runtime, name))


@pytest.fixture
def binding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recording]:
    recording = Recording()
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", recording)
    caches = [each.cache_clear for each in (cuda.binding, memory.device_attributes)]
    for clear in caches:
        clear()
    yield recording
    for clear in caches:
        clear()


def call_all_of(module: Any) -> None:
    """Calls each public function of a module with all values that it allows, and any function that it returns."""
    for name, function in vars(module).items():
        if name.startswith("_") or not inspect.isroutine(function) or function.__module__ != module.__name__:
            continue
        kinds = [GIVEN[parameter.annotation] for parameter in inspect.signature(function).parameters.values()]
        for given in itertools.product(*kinds):
            found = function(*given)
            for undo in found if isinstance(found, tuple) else (found,):
                if callable(undo):
                    undo()


def test_every_call_fits_the_bindings_signature(binding: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    call_all_of(memory)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: None)
    streams.Stream(torch.device("cuda", NO_GPU))
    GPU = type("GPU", (), {"name": "GPU", "total_memory": 0, "major": 9, "minor": 0})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: GPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    (finding,) = checkup.check_gpu(torch)
    assert finding.found.startswith("GPU, 0.0 GiB")
    after_errors = {"cudaGetLastError", "cudaGetErrorString"}  # the other test's
    names, statuses = map(set, zip(*binding.calls, strict=True))
    assert names == {name for name in NAMES if is_function(name)} - after_errors
    assert statuses <= NO_DRIVER


@pytest.mark.parametrize("name", NAMES)
def test_the_binding_knows_every_name_of_cuda(name: str) -> None:
    enumerations = [each for each in vars(runtime).values() if inspect.isclass(each)]
    assert hasattr(runtime, name) or any(hasattr(each, name) for each in enumerations)


def test_an_error_names_the_call_and_the_reason() -> None:
    cuda.binding.cache_clear()
    with pytest.raises(ConfigurationError, match=r"^cudaSetDevice failed: .*driver.*\.$"):
        cuda.call("cudaSetDevice", 0)
