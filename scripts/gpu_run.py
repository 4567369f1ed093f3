"""Runs everything that needs a GPU, in numbered pieces: the tests of test/gpu, the sanitizers and the benchmarks.

Each piece and each of its steps has a budget of time. A step that takes longer is killed. Results go to one folder:
JSON and a log for each piece, and JSON and a picture for each benchmark. summary.md has one table of all pieces with
results in that folder. All files are written anew after each step, so a run that is cut short loses one step.

Exit codes: 0 if every step passed; 1 if one failed or took too long; 3 if this machine lacks a GPU or a package.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_pieces import PIECES, Piece
from gpu_steps import FAILED, OVER_BUDGET, ROOT, is_there, tail_of
from gpu_summary import SUMMARY, write_summary

CANNOT_RUN = 3
NEEDED = {  # the package to install for each module
    "numpy": "numpy",
    "torch": "torch",
    "torchvision": "torchvision",
    "triton": "triton",
    "pytest": "pytest",
    "cv2": "opencv-python-headless",
    "ml_dtypes": "ml_dtypes",
    "safetensors": "safetensors",
    "cuda.bindings": "cuda-bindings",
}
DESCRIBE = """
import json, sys
import torch, triton
from split_infer_ros.telemetry.machine import describe_machine, gpu_driver
if not torch.cuda.is_available():
    sys.exit(f"torch {torch.__version__} (CUDA {torch.version.cuda}) cannot use this machine's GPU")
about = describe_machine()
versions = {"driver": gpu_driver(), "triton": triton.__version__, **about.pop("versions")}
print(json.dumps({**about, **versions}))
"""


class CannotRun(Exception):
    """This machine lacks something that is needed. The message is a sentence."""


def count_gpus() -> int:
    """Returns how many GPUs NVIDIA's driver shows to this process. torch would need seconds for this."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def describe() -> dict[str, Any]:
    """Returns a description of the machine. A child process makes it, so that this process holds no memory of the GPU.

    Raises:
        CannotRun: there is no GPU, a package is missing, or torch cannot use the GPU.
    """
    if count_gpus() == 0:
        raise CannotRun("NVIDIA's driver shows no GPU on this machine, so nothing was run.")
    if shutil.which("gcc") is None or not (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file():
        raise CannotRun("Triton compiles C for its launchers: install gcc and Python's headers, and run this again.")
    missing = [package for module, package in NEEDED.items() if not is_there(module)]
    if missing:
        raise CannotRun(f"{sys.executable} lacks {', '.join(missing)}: install what is missing and run this again.")
    found = subprocess.run([sys.executable, "-c", DESCRIBE], capture_output=True, text=True)
    if found.returncode:
        reason = (found.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise CannotRun(f"This machine's GPU cannot be used: {reason}.")
    entry: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return entry


def environment_of(cache: Path) -> dict[str, str]:
    """Returns the variables for a piece.

    Its caches are in ``cache``: it uses and leaves no other measurements and builds.
    """
    path = [str(ROOT / "scripts"), os.environ.get("PYTHONPATH", str(ROOT))]  # pytest finds its plugin there
    caches = {name: str(cache / name) for name in ("XDG_CACHE_HOME", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}
    queues = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}  # prepare_process sets this, but tests do not call it
    return {**queues, **os.environ, **caches, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


class Results:
    """Keeps the results of a piece so far on disk.

    Args:
        number: the piece's number.
        title: the piece's title.
        machine: the description of the machine.
        out: the folder of results.
        archive: a file that gets the whole folder; None for no archive.
    """

    def __init__(self, number: int, title: str, machine: Mapping[str, Any], out: Path, archive: Path | None) -> None:
        self.steps: list[dict[str, Any]] = []
        self._report = {"number": number, "title": title, "machine": dict(machine), "steps": self.steps}
        self._path, self._out, self._archive = out / f"piece_{number}.json", out, archive

    def add(self, step: dict[str, Any]) -> None:
        """Adds the outcome of a step, and writes the piece's JSON, the table and the archive."""
        self.steps.append(step)
        self._path.write_text(json.dumps(self._report, indent=2) + "\n")
        write_summary(self._out)
        if self._archive is not None:
            write_archive(self._out, self._archive)


def write_archive(folder: Path, archive: Path) -> None:
    """Writes a folder to a .tar.gz file, which may lie in the folder.

    An older file stays whole until the new one is done.
    """
    unfinished = archive.with_name(f"{archive.name}.unfinished")

    def without_archives(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if Path(member.name).name in (archive.name, unfinished.name) else member

    with tarfile.open(unfinished, "w:gz") as file:
        file.add(folder, arcname=folder.name, filter=without_archives)
    unfinished.replace(archive)


def run_piece(
    number: int,
    piece: Piece,
    machine: Mapping[str, Any],
    out: Path,
    *,
    archive: Path | None = None,
    end: float = math.inf,
) -> bool:
    """Runs the steps of a piece, and writes the outcome of each; returns whether all passed or were left out.

    Args:
        number: the piece's number.
        piece: the piece, with its steps and budget.
        machine: the description of the machine.
        out: the folder of results.
        archive: a file that gets the whole folder after each step.
        end: when all steps must be over, in seconds of the monotonic clock.
    """
    log = out / f"piece_{number}.log"
    log.write_text("")
    results = Results(number, piece.title, machine, out, archive)
    end = min(end, time.monotonic() + piece.seconds)
    with tempfile.TemporaryDirectory(prefix="split_infer_gpu_") as cache:
        environment = environment_of(Path(cache))
        for step in piece.steps(out):
            last = step.run(end - time.monotonic(), log, environment)
            results.add(last)
            print(f"  {step.name}: {last['outcome']}, {last['seconds']:.0f} s. {last['why']}", flush=True)
            if last["outcome"] in (FAILED, OVER_BUDGET):
                print(tail_of(log), flush=True)
    return not any(step["outcome"] in (FAILED, OVER_BUDGET) for step in results.steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        "scripts/gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pieces", nargs="*", type=int, metavar="PIECE", help="numbers, as --list has them; else all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder of results (build/gpu)")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="a .tar.gz file that gets the folder of results")
    parser.add_argument("--seconds", type=float, default=math.inf, help="of all pieces together (no limit)")
    parser.add_argument("--list", action="store_true", help="say what the pieces are, and run nothing")
    chosen = parser.parse_args(arguments)
    if chosen.list:
        for number, piece in PIECES.items():
            print(f"{number}  {piece.title}, {piece.seconds:.0f} s at most")
            print(*(f"     {step.name}" for step in piece.steps(chosen.out)), sep="\n")
        return 0
    for number in chosen.pieces:
        if number not in PIECES:
            parser.error(f"there is no piece {number}; there are {', '.join(map(str, PIECES))}.")
    end = time.monotonic() + chosen.seconds
    try:
        machine = describe()
    except CannotRun as error:
        print(f"scripts/gpu: {error}", file=sys.stderr)
        return CANNOT_RUN
    out = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    passed = True
    for number in chosen.pieces or PIECES:
        print(f"Piece {number}: {PIECES[number].title}", flush=True)
        passed &= run_piece(number, PIECES[number], machine, out, archive=chosen.archive, end=end)
        print(f"The table is in {out / SUMMARY}.", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
