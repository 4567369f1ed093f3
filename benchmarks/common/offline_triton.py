"""Uses Triton's compiler without a GPU: kernels are compiled for a target instead of being launched.

Launchers are called unchanged, with tensors on torch's ``meta`` device. So Triton itself derives each kernel's
signature, its constants and the arguments that are multiples of 16, as it does on a GPU.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

THREADS_PER_WARP = 32
ONE, SIXTEENS, ANY = "1", "multiple of 16", "any"
_RESOURCES: dict[str, tuple[int, int]] = {}  # the registers and spilled bytes of the kernels of this process, by hash


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compiled kernel, and what the compiler reports about it.

    Attributes:
        kernel: the name of the kernel's function.
        hash: identifies the kernel with its types, constants and options.
        target: the compute capability, 90 for sm_90.
        types: the element type of each tensor argument, as Triton names it: ``fp16``, ``i64``, ...
        numbers: the specialisation of each whole-number argument: for 1, for multiples of 16, or for any number.
        shared_bytes: the bytes of memory that the threads of a block share.
        registers: the number of registers of a thread.
        spilled_bytes: the bytes of a thread's values that found no register.
        warps: warps that share a program.
    """

    kernel: str
    hash: str
    target: int
    types: Mapping[str, str]
    numbers: Mapping[str, str]
    shared_bytes: int
    registers: int
    spilled_bytes: int
    warps: int


def compile_launches(launch: Callable[[], object], target: int) -> list[Compiled]:
    """Compiles all kernels that ``launch`` launches, for the target sm_``target``.

    Afterwards, this process cannot use a GPU.
    """
    compiled = []
    run = JITFunction.run

    def compile_only(self: Any, *arguments: Any, **options: Any) -> Any:
        kernel = run(self, *arguments, **{**options, "warmup": True})
        compiled.append(_compiled(self, kernel, target))
        return kernel

    driver.set_active(_OfflineDriver(target))
    with mock.patch.object(JITFunction, "run", compile_only):
        launch()
    return compiled


class _OfflineDriver:
    """The part of a GPU's driver that the compiler uses. Each target is a device with that number."""

    def __init__(self, target: int) -> None:
        self._target = target

    def get_current_device(self) -> int:
        return self._target

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._target, THREADS_PER_WARP)


def _compiled(function: Any, kernel: Any, target: int) -> Compiled:
    source = kernel.src
    types, numbers = {}, {}
    for place, param in enumerate(function.params):
        if param.is_constexpr:
            continue
        for path, name, kind in _leaves((place,), param.name, source.signature[param.name]):
            if kind.startswith("*"):
                types[name] = kind[1:]
            elif path in source.constants or kind.startswith("i"):
                numbers[name] = ONE if path in source.constants else SIXTEENS if source.attrs.get(path) else ANY
    if kernel.hash not in _RESOURCES:  # one launch may run a kernel many times, and a program reads what it needs
        _RESOURCES[kernel.hash] = _resources(kernel)
    registers, spilled_bytes = _RESOURCES[kernel.hash]
    return Compiled(
        kernel=function.fn.__name__,
        hash=kernel.hash,
        target=target,
        types=types,
        numbers=numbers,
        shared_bytes=kernel.metadata.shared,
        registers=registers,
        spilled_bytes=spilled_bytes,
        warps=kernel.metadata.num_warps,
    )


def _leaves(path: tuple[int, ...], name: str, kind: Any) -> Iterator[tuple[tuple[int, ...], str, str]]:
    """Yields place, name and type of an argument, or of each member of a named tuple that is no constant."""
    if isinstance(kind, str):
        yield path, name, kind
        return
    for place, (member, each) in enumerate(kind._asdict().items()):
        if not member.isupper():  # the names of constants are in capitals
            yield from _leaves((*path, place), f"{name}.{member}", each)


def _resources(kernel: Any) -> tuple[int, int]:
    """Returns a thread's registers and the bytes on its stack, all of them spilled: the kernels have no arrays."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    return int(registers), int(stack)
