"""Measures the peak memory of a residency from outside its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import _streaming_child as child
import torch
from _usage import forget_peak, peak_bytes, resident_bytes

WAIT_S = 120.0
PASSES = 2


def measure_peak(name: str, path: Path, residency: str, plan: child.AutoPlan) -> int:
    """Returns the bytes by which a residency's process grows at most, after everything but the weights is loaded.

    Args:
        name: of the model.
        path: of its packed weights.
        residency: as for ``open_partition``.
        plan: for ``auto``.
    """
    command = [sys.executable, child.__file__, name, str(path), residency, str(PASSES), *map(str, plan)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # for which weights were packed
    with subprocess.Popen(
        command, text=True, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            _expect(process, "ready", residency)
            loaded_bytes = resident_bytes(process.pid)
            _continue(process)
            _expect(process, "open", residency)
            forget_peak(process.pid)
            _continue(process)
            _expect(process, "done", residency)
            peak = peak_bytes(process.pid)
            _continue(process)
            process.wait(WAIT_S)
        finally:
            process.kill()
    return peak - loaded_bytes


def _expect(process: subprocess.Popen[str], word: str, residency: str) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith(word), f"{residency} does not get {word}"


def _continue(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
