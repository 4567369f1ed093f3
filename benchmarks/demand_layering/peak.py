"""Measures the peak memory of processes from outside: of a residency, and of a start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.common.child_process import to_run
from benchmarks.common.usage import forget_peak, peak_bytes, resident_bytes
from benchmarks.demand_layering import child, start_child

WAIT_S = 120.0
PASSES = 2


def measure_peak(name: str, path: Path, residency: str, plan: child.AutoPlan) -> int:
    """Returns by how many bytes a process with a residency grows at most while it runs passes.

    The growth counts from the moment when everything but the weights is loaded.

    Args:
        name: the model's name.
        path: the file of its packed weights.
        residency: the residency, as for ``open_partition``.
        plan: the memory for ``auto``; other residencies ignore it.
    """
    with _started(child.__name__, name, str(path), residency, str(PASSES), *map(str, plan)) as process:
        _expect(process, "ready", residency)
        loaded_bytes = resident_bytes(process.pid)
        _continue(process)
        _expect(process, "open", residency)
        forget_peak(process.pid)
        _continue(process)
        _expect(process, "done", residency)
        return peak_bytes(process.pid) - loaded_bytes


def measure_start(name: str, path: Path) -> tuple[int, int]:
    """Measures how much a process grows that starts a model from its packed file, in residency ``two_stage``.

    Args:
        name: the model's name.
        path: the file of its packed weights.

    Returns:
        Two peaks in bytes: up to the first result, and in later passes. Both leave out what the process has in memory
        before it loads the model.
    """
    with _started(start_child.__name__, name, str(path), str(PASSES)) as process:
        _expect(process, "ready", name)
        loaded_bytes = resident_bytes(process.pid)
        forget_peak(process.pid)
        _continue(process)
        _expect(process, "first", name)
        start_bytes = peak_bytes(process.pid) - loaded_bytes
        forget_peak(process.pid)
        _continue(process)
        _expect(process, "done", name)
        return start_bytes, peak_bytes(process.pid) - loaded_bytes


@contextmanager
def _started(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a module with arguments in a process of its own. The end of the block ends it."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # weights are packed for this number
    with subprocess.Popen(
        [sys.executable, *to_run(module), *arguments],
        text=True,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            yield process
            _continue(process)
            process.wait(WAIT_S)
        finally:
            process.kill()


def _expect(process: subprocess.Popen[str], word: str, residency: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith(word), f"{residency} does not get {word}"


def _continue(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
