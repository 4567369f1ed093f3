"""Runs a benchmark of a tree in a process of its own, with an empty cache, and reads its figures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.figures import Figure, read_figures
from benchmarks.compare.other_commit import CompareError

MAX_EXIT_S = 20.0  # how long a benchmark that is told to end may take
SHOWN_LINES = 5  # how many of its last lines are shown if a benchmark fails


class BenchmarkError(CompareError):
    """Raised if a benchmark failed. It may succeed when it runs again."""


def run_benchmark(tree: Path, bench: str, options: Sequence[str], outside: Mapping[str, str]) -> list[Figure]:
    """Runs a tree's own benchmark with the tree's ``scripts/run`` and an empty cache; returns the figures.

    Args:
        tree: the folder of the tree.
        bench: the name of the benchmark.
        options: arguments for the benchmark.
        outside: environment variables; see ``outside_environment``.

    Raises:
        BenchmarkError: the benchmark failed, or wrote no report.
    """
    with tempfile.TemporaryDirectory() as temporary:
        report, log = Path(temporary, "report.json"), Path(temporary, "log")
        command = [tree / "scripts" / "run", "bench", bench, *options, "--json", report]
        # With a shared cache, what one run stores, such as its choice of an engine, would decide about later runs.
        variables = {**outside, "XDG_CACHE_HOME": str(Path(temporary, "cache"))}
        with log.open("wb") as output:
            code = _run(command, cwd=tree, env=variables, stdout=output, stderr=subprocess.STDOUT)
        if code != 0:
            last = "\n  ".join(log.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
            raise BenchmarkError(f"benchmark {bench} of {tree} ended with exit code {code}:\n  {last}")
        try:
            return read_figures(json.loads(report.read_text()))
        except (OSError, ValueError) as error:
            raise BenchmarkError(f"benchmark {bench} of {tree} wrote no report that can be read ({error})") from error


def _run(command: Sequence[str | Path], **options: Any) -> int:
    """Runs a command and returns its exit code.

    If this process is told to end, it first ends the command and its nodes.
    """
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options) as process:
        try:
            return process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGINT)  # a benchmark ends its nodes
            try:
                process.wait(MAX_EXIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
