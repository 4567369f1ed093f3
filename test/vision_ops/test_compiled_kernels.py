"""Triton kernels are compiled for GPUs that this machine need not have, and checked against their limits.

Other tests interpret the kernels, but the interpreter accepts code that the compiler refuses.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import pkgutil
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from unittest import mock

import pytest

pytest.importorskip("triton", reason="needs Triton")

from kernel_launches import Launch, launches
from triton.runtime.jit import JITFunction

from benchmarks.common.gpu_targets import SHARED_BYTES
from benchmarks.common.offline_triton import ANY, ONE, SIXTEENS, Compiled, compile_launches
from split_infer_ros.vision_ops import kernels
from split_infer_ros.vision_ops.launch_limits import GpuLimits

pytestmark = pytest.mark.timeout(900)

WORKERS = 2
TIMEOUT_S = 800.0  # in which a busy machine compiles all of them
FLOATING, SUMMED, KEYS = {"fp32", "fp16", "bf16"}, {"fp32", "i64"}, {"i64"}
TYPES = dict.fromkeys(("_pointwise", "_depthwise", "_windowed", "_merged", "_fused"), FLOATING)
TYPES |= dict.fromkeys(("_up_sweep", "_down_sweep"), SUMMED)
TYPES |= {"_sort_blocks": KEYS, "_merge": KEYS, "_suppress": {"fp32", "i64", "i32"}}
TYPES |= {"_count": {"fp32", "i64"}, "_write": {"fp32", "i64", "i32"}, "_copy_best": {"fp32", "i64", "i32"}}
MAX_SPILLED = {75: 1024}  # bytes of a thread, because Turing keeps the next tiles in registers, which are few
IMPOSSIBLE = {  # specialisations that never happen, because a single block has nothing to add or to merge
    "_down_sweep": {"length": {ONE}, "blocks": {ONE}},
    "_merge": {"width": {ONE, ANY}, "steps": {ONE}},
}

Results = list[tuple[Launch, list[Compiled]]]


class Extent(NamedTuple):
    """For which GPU kernels are compiled, and whether with all specialisations of numbers.

    Those are Triton's, and the same for all GPUs. So the quick run compiles them once.
    """

    target: int
    in_each_specialisation: bool


FULL = [
    pytest.param(Extent(target, True), marks=[] if target == 90 else pytest.mark.slow, id=f"{target}")
    for target in SHARED_BYTES
]
QUICK = pytest.param(Extent(75, False), id="75, quick")  # the least memory; 90 has the most


@pytest.fixture(scope="module", params=[QUICK, *FULL])
def extent(request: pytest.FixtureRequest) -> Extent:
    found: Extent = request.param
    return found


@pytest.fixture(scope="module")
def target(extent: Extent) -> int:
    return extent.target


@pytest.fixture(scope="module")
def compilers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessPoolExecutor]:
    """Processes that compile for all targets. Triton's cache is empty at first, and no two targets share an entry."""
    cache = {"TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton")), "TRITON_INTERPRET": "0"}
    with (
        mock.patch.dict(os.environ, cache),
        ProcessPoolExecutor(WORKERS, multiprocessing.get_context("spawn")) as pool,
    ):
        yield pool


@pytest.fixture(scope="module")
def results(extent: Extent, compilers: ProcessPoolExecutor) -> Results:
    """All launches for a target, each compiled."""
    target = extent.target
    begin = time.monotonic()
    asked: list[tuple[Launch, Future[list[Compiled]]]] = [
        (launch, compilers.submit(compile_launches, launch.call, target))
        for launch in launches(
            GpuLimits(target, SHARED_BYTES[target]), in_each_specialisation=extent.in_each_specialisation
        )
    ]
    found: Results = []
    for launch, future in asked:
        try:
            found.append((launch, future.result(TIMEOUT_S)))
        except Exception as error:
            for _, other in asked:
                other.cancel()
            pytest.fail(f"sm_{target}, {launch.name}: {type(error).__name__}: {error}")
    variants = {kernel.hash for _, compiled in found for kernel in compiled}
    print(f"{len(asked)} launches, {len(variants)} kernels in {time.monotonic() - begin:.0f} s")
    return found


def test_kernels_fit_the_targets_shared_memory(results: Results, target: int) -> None:
    for launch, compiled in results:
        for kernel in compiled:
            assert kernel.shared_bytes <= SHARED_BYTES[target], launch.name


def test_default_schedules_do_not_spill(results: Results, target: int) -> None:
    for launch, compiled in results:
        for kernel in compiled:
            assert launch.is_extreme or kernel.spilled_bytes <= MAX_SPILLED.get(target, 0), launch.name


def test_every_kernel_is_compiled_in_each_type(results: Results) -> None:
    types = defaultdict(set)
    for _, compiled in results:
        for kernel in compiled:
            types[kernel.kernel] |= set(kernel.types.values())
    assert types == TYPES
    assert set(types) == kernels_of_the_package()


@pytest.mark.parametrize("extent", FULL, indirect=True)
def test_every_number_is_compiled_in_each_specialisation(results: Results) -> None:
    specialisations: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for _, compiled in results:
        for kernel in compiled:
            for name, specialisation in kernel.numbers.items():
                specialisations[kernel.kernel][name].add(specialisation)
    for kernel, numbers in specialisations.items():
        for name, found in numbers.items():
            assert found == {ONE, SIXTEENS, ANY} - IMPOSSIBLE.get(kernel, {}).get(name, set()), f"{kernel}: {name}"


def kernels_of_the_package() -> set[str]:
    """Returns the names of jitted functions that no other jitted function calls."""
    jitted = {
        name: function
        for module in modules_of_kernels()
        for name, function in vars(module).items()
        if isinstance(function, JITFunction)
    }
    return set(jitted) - {name for function in jitted.values() for name in function.fn.__code__.co_names}


def modules_of_kernels() -> Iterator[ModuleType]:
    """Imports every module of kernels."""
    for found in pkgutil.iter_modules([str(Path(kernels.__file__).parent)]):
        yield importlib.import_module(f"{kernels.__name__}.{found.name}")
