"""Steps: commands that each have a budget of time. After it, a command is killed with all that it started."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PASSED, FAILED, OVER_BUDGET, LEFT_OUT = "passed", "failed", "over budget", "left out"
ROOT = Path(__file__).parents[1]
LEAST_S = 10.0  # if less is left of a piece's budget, a step is not begun
TAIL = 40  # how many lines of a failed step's output are shown


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        name: the step's name, for people.
        command: the command with its arguments.
        seconds: the step's budget.
        environment: variables to set in addition to those of the piece.
        needs: modules or programs. If one is missing, the step is left out.
        notes: the file to which the plugin ``gpu_notes`` writes the outcome of each test; None if there are no tests.
        report: the JSON file to which a benchmark writes its claims; None if the step is no benchmark.
    """

    name: str
    command: Sequence[str]
    seconds: float
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = ()
    notes: Path | None = None
    report: Path | None = None

    def run(self, left_s: float, log: Path, environment: Mapping[str, str]) -> dict[str, Any]:
        """Runs the command for at most its budget and at most ``left_s``.

        Args:
            left_s: the seconds that are left of the piece's budget.
            log: the file to which the command's output is added.
            environment: all variables but those of the step itself.

        Returns:
            ``name``, ``outcome``, ``seconds``, ``why`` (a sentence unless it passed) and, where there are any,
            ``tests`` (outcome and reason by name) and ``claims``.
        """
        missing = [name for name in self.needs if not is_there(name)]
        if missing:
            return self._outcome_of(LEFT_OUT, 0.0, f"This machine lacks {', '.join(missing)}.")
        if left_s < min(LEAST_S, self.seconds):
            return self._outcome_of(OVER_BUDGET, 0.0, "It was not begun, because the piece's budget was spent.")
        budget_s = min(self.seconds, left_s)
        begin = time.monotonic()
        with log.open("ab") as output:
            output.write(f"\n==== {self.name}: {' '.join(map(str, self.command))}\n".encode())
            output.flush()
            status = _run_in_a_group(self.command, {**environment, **self.environment}, budget_s, output)
        seconds = time.monotonic() - begin
        if status is None:
            return self._outcome_of(OVER_BUDGET, seconds, f"It was killed after its budget of {budget_s:.0f} s.")
        if status != 0:
            return self._outcome_of(FAILED, seconds, f"It ended with exit code {status}.")
        return self._outcome_of(PASSED, seconds, "")

    def _outcome_of(self, outcome: str, seconds: float, why: str) -> dict[str, Any]:
        entry: dict[str, Any] = {"name": self.name, "outcome": outcome, "seconds": round(seconds, 1), "why": why}
        if self.notes is not None and self.notes.exists():
            entry["tests"] = read_notes(self.notes)
            self.notes.unlink()  # the piece's report has all of it
            running = [name for name, (result, _) in entry["tests"].items() if result == "begun"]
            if running:
                entry["why"] += f" Then {running[-1]} was running."
        if self.report is not None and self.report.exists():
            entry["claims"] = json.loads(self.report.read_text())["claims"]
        return entry


def read_notes(path: Path) -> dict[str, tuple[str, str]]:
    """Returns the outcome of each test, and the reason if it did not pass, by the test's name."""
    found: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines():
        note = json.loads(line)
        if found.get(note["test"], ("",))[0] != FAILED:  # after a test has failed, its clean-up may pass
            found[note["test"]] = note["outcome"], note["reason"]
    return found


def is_there(name: str) -> bool:
    """Returns whether a module of that name can be imported, or a program of that name started."""
    try:
        return importlib.util.find_spec(name) is not None or shutil.which(name) is not None
    except ModuleNotFoundError:  # the package that would hold the module is missing
        return False


def tail_of(log: Path) -> str:
    """Returns the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL:])


def _run_in_a_group(command: Sequence[str], environment: Mapping[str, str], seconds: float, output: Any) -> int | None:
    """Runs a command; returns its exit code, or None if it took too long. Then it was killed with its process group."""
    process = subprocess.Popen(
        list(command),
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # kills also processes that an ended command has left
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
