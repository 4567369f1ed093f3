"""How much memory a way of having weights takes, seen from outside its process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import _layering_child as child
import torch

from split_infer_ros.telemetry.usage import forget_peak, peak_bytes, resident_bytes

WAIT_S = 120.0


def peak(name: str, path: Path, way: str, placement: tuple[int, int]) -> int:
    """Bytes by which a way's process grows at most, seen from outside, once all but its weights is there."""
    command = [sys.executable, child.__file__, name, str(path), way, "2", *map(str, placement)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}  # for which weights were packed
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            for word in ("ready", "open", "done"):
                assert process.stdout.readline().startswith(word), f"{way} does not get {word}"
                if word == "ready":
                    before = resident_bytes(process.pid)
                elif word == "open":
                    forget_peak(process.pid)
                else:
                    after = peak_bytes(process.pid)
                process.stdin.write("\n")
                process.stdin.flush()
            process.wait(WAIT_S)
        finally:
            process.kill()
    return after - before
