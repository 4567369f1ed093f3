"""Triton's compiler without a GPU: what a launcher launches is compiled for a target, and nothing runs.

Launchers are called as they are, with tensors on torch's ``meta`` device. So Triton itself derives each kernel's
signature, its constants and which arguments are multiples of 16, as it does on a GPU.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

WARP = 32
ONE, SIXTEENS, ANY = "1", "multiple of 16", "any"


@dataclass(frozen=True, slots=True)
class Compiled:
    """What the compiler says of one kernel.

    Attributes:
        kernel: its name.
        hash: tells it from every other one, of other types, constants or options.
        target: 90 for sm_90.
        types: its tensors' element types by argument, as Triton names them: ``fp16``, ``i64``, ...
        numbers: how each whole-number argument is specialised: as 1, as a multiple of 16, or for any number.
        shared_bytes: of memory that the threads of a block share.
        registers: of a thread.
        spilled_bytes: of a thread, that found no register.
    """

    kernel: str
    hash: str
    target: int
    types: Mapping[str, str]
    numbers: Mapping[str, str]
    shared_bytes: int
    registers: int
    spilled_bytes: int


def compile_launches(launch: Callable[[], object], target: int) -> list[Compiled]:
    """All kernels that ``launch`` launches, compiled for sm_``target``; this process then stays without a GPU."""
    found = []
    run = JITFunction.run

    def compile_only(self: Any, *given: Any, **how: Any) -> Any:
        kernel = run(self, *given, **{**how, "warmup": True})
        found.append(_told(self, kernel, target))
        return kernel

    driver.set_active(_Offline(target))
    with mock.patch.object(JITFunction, "run", compile_only):
        launch()
    return found


class _Offline:
    """What the compiler asks of a GPU's driver; each target is a device of that number."""

    def __init__(self, target: int) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return self._target

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._target, WARP)


def _told(function: Any, kernel: Any, target: int) -> Compiled:
    source = kernel.src
    constants = {path[0] for path in source.constants}
    types, numbers = {}, {}
    for place, param in enumerate(function.params):
        kind = source.signature[param.name]
        if kind.startswith("*"):
            types[param.name] = kind[1:]
        elif not param.is_constexpr and (place in constants or kind.startswith("i")):
            numbers[param.name] = ONE if place in constants else SIXTEENS if source.attrs.get((place,)) else ANY
    name, shared = function.fn.__name__, kernel.metadata.shared
    return Compiled(name, kernel.hash, target, types, numbers, shared, *_resources(kernel))


def _resources(kernel: Any) -> tuple[int, int]:
    """Registers of a thread, and bytes on its stack: these kernels have no arrays there, but what was spilled."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", told).groups()
    return int(registers), int(stack)
