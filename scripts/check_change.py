"""Checks a change: ruff and its formatter, mypy, and the tests that are nearest to what has changed.

A test file is near if few imports lie between it and a changed file. The nearest ones run, as many as fit into the
time. A test that has not begun when the time is over is skipped. The command names the files that it leaves out;
scripts/test runs all of them. Slow tests run if they run a benchmark that has changed, or whose subject has.

Exit codes: 0 if everything passed, 1 if something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from nearest_tests import Near, choose, nearest

ROOT = Path(__file__).resolve().parents[1]
DURATIONS = ROOT / "test" / "durations.json"
SECONDS = 150.0
START_S = 15.0  # of pytest and its two workers, beside the tests
LAST_TEST_S = 16.0  # most tests that have begun take less, and so do the ends of the workers
WORKERS = 2


def changed_since(commit: str) -> list[str]:
    """Returns the paths that differ from a commit, new files that git does not ignore included."""

    def git(*arguments: str) -> list[str]:
        found = subprocess.run(["git", *arguments, "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
        return [path for path in found.stdout.split("\0") if path]

    return sorted({*git("diff", "--name-only", commit), *git("ls-files", "--others", "--exclude-standard")})


def run(name: str, *command: str) -> bool:
    """Runs one check; returns whether it passed."""
    begin = time.monotonic()
    passed = subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}).returncode == 0
    print(f"{name}: {'passed' if passed else 'FAILED'}, {time.monotonic() - begin:.0f} s", flush=True)
    return passed


def slow_too(tests: Sequence[Near]) -> Iterator[str]:
    """Yields pytest's arguments with which the slow tests of some files run too."""
    paths = [each.path for each in tests if each.with_slow]
    if paths:
        yield from ("-m", "not slow or slow_too")
        yield from (f"--slow-too={path}" for path in paths)


def line(test: Near) -> str:
    """Returns a line about a test file: its distance, its path and its duration."""
    slow = ", with slow tests" if test.with_slow else ""
    return f"{test.distance}  {test.path}, {test.seconds:.0f} s{slow}"


def say_left_out(left_out: Sequence[Near]) -> None:
    """Names the test files that did not run."""
    if left_out:
        minutes = sum(each.seconds for each in left_out) / WORKERS / 60
        print(f"Left out, {minutes:.1f} minutes of {len(left_out)} test files (the number is their distance):")
        print(*(f"  {line(each)}" for each in left_out), sep="\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    begin = time.monotonic()
    parser = argparse.ArgumentParser(
        "scripts/check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--since", default="HEAD", metavar="COMMIT", help="what counts as changed since then (HEAD)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for all checks together ({SECONDS:.0f})")
    parser.add_argument("--list", action="store_true", help="say which tests would run, and run nothing")
    chosen = parser.parse_args(arguments)
    durations = json.loads(DURATIONS.read_text())["seconds"] if DURATIONS.exists() else {}
    near = nearest(ROOT, changed_since(chosen.since), durations)
    passed = []
    if not chosen.list:
        passed = [
            run("ruff", "ruff", "check", "."),
            run("ruff format", "ruff", "format", "--check", "--quiet", "."),
            run("mypy", "mypy"),
        ]
    budget_s = chosen.seconds - START_S - (time.monotonic() - begin)
    tests, left_out = choose(near, max(0.0, budget_s) * WORKERS)
    if chosen.list:
        print(*map(line, tests), sep="\n")
    elif tests:
        until = f"--until={time.time() + chosen.seconds - (time.monotonic() - begin) - LAST_TEST_S}"
        workers = ["--numprocesses", str(WORKERS), "--dist", "loadfile"] if len(tests) > 1 else []
        paths = [each.path for each in tests]
        passed.append(run("tests", "pytest", "-q", "--no-cov", until, *workers, *slow_too(tests), *paths))
    elif not near:
        print("No test file depends on what has changed.")
    say_left_out(left_out)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
