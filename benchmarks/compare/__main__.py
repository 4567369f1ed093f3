"""Compares benchmarks of this tree and of another commit, in turns, on this machine.

    scripts/run bench compare COMMIT NAME [NAME ...] [--quick] [--turns N] [-- OPTIONS]

The other commit gets a git worktree with an environment of its own below FOLDER, about 6 GB on disk. Its own
benchmarks run there. The worktree is kept for the next comparison; --remove removes it. This tree runs as it is, with
its uncommitted changes. Options behind -- go to the benchmarks of both trees, so both must know them.

A turn is one run of each benchmark in both trees, each with an empty cache of its own. The order is this, other; other,
this; and so on. A figure's ratio says how many times better this tree is; above 1, it is better. The table
shows the median of the turns' ratios, and its 95 % interval. The exit code is 0 if this tree is not slower, 1 if it is,
and 2 if the comparison is not possible. Not slower means:
RULE.

A benchmark that fails is run once more. If it fails again, the comparison ends, with the turns done so far.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.figures import CHOICES, Figure
from benchmarks.common.turns import rotated
from benchmarks.compare.benchmark_run import BenchmarkError, run_benchmark
from benchmarks.compare.comparison import LEAST_TURNS, RULE, Comparison
from benchmarks.compare.other_commit import CompareError, OtherCommit, git, outside_environment
from split_infer_ros.runtime.cache import cache_folder

ROOT = Path(__file__).resolve().parents[2]
THIS, OTHER = "this", "other"
QUICK_TURNS_S = 20.0  # seconds of turns in a quick run; with an empty cache, comparing engines takes most of its minute


def parse(given: Sequence[str]) -> argparse.Namespace:
    """Returns the parsed command-line arguments. Their attribute ``options`` has the arguments for the benchmarks.

    Raises:
        SystemExit: the arguments are wrong.
    """
    index = list(given).index("--") if "--" in given else len(given)
    own, options = given[:index], given[index + 1 :]
    text = (__doc__ or "").replace("RULE", RULE)
    parser = argparse.ArgumentParser(
        prog="bench compare", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("commit", metavar="COMMIT", help="what this tree is compared with")
    parser.add_argument("benchmarks", nargs="*", metavar="NAME", help=f"of {', '.join(CHOICES)}")
    parser.add_argument("--quick", action="store_true", help=f"quick runs, with {QUICK_TURNS_S:g} s of turns each")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="for how long rivals take turns in a run; default: the benchmark's own, or as --quick says",
    )
    parser.add_argument("--turns", type=int, default=LEAST_TURNS, metavar="N", help=f"{LEAST_TURNS} unless given")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help=f"of worktrees; {default_folder()} unless given")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all ratios")
    parser.add_argument("--remove", action="store_true", help="remove the other commit's worktree afterwards, or alone")
    chosen = parser.parse_intermixed_args(own)
    seconds = QUICK_TURNS_S if chosen.quick and chosen.seconds is None else chosen.seconds
    chosen.options = [
        *(["--quick"] if chosen.quick else []),
        *(["--seconds", f"{seconds:g}"] if seconds is not None else []),
        *options,
    ]
    if chosen.turns < 1:
        parser.error(f"--turns cannot be {chosen.turns}; an interval needs {LEAST_TURNS}.")
    unknown = [name for name in chosen.benchmarks if name not in CHOICES]
    if unknown:
        parser.error(f"'{unknown[0]}' cannot be compared; NAME is one of: {', '.join(CHOICES)}.")
    if not chosen.benchmarks and not chosen.remove:
        parser.error(f"name the benchmarks to compare: {', '.join(CHOICES)}.")
    return chosen


def default_folder() -> Path:
    """Returns the folder of worktrees in the user's cache."""
    return cache_folder() / "compare"


def compare(root: Path, chosen: argparse.Namespace, comparison: Comparison) -> None:
    """Prepares the other commit, and runs the benchmarks of both trees in turns.

    Args:
        root: the folder of this tree.
        chosen: the result of ``parse``.
        comparison: the figures of each turn are added to it.

    Raises:
        CompareError: the comparison is not possible.
    """
    folder = (chosen.folder or default_folder()).expanduser().absolute()
    other = OtherCommit(root, chosen.commit, folder)
    missing = [name for name in chosen.benchmarks if not _has_benchmark(other, name)]
    if missing:
        raise CompareError(f"commit {other.sha[:12]} has no benchmark '{missing[0]}'; compare with a later one")
    with _alone(folder):
        if chosen.benchmarks:
            outside = outside_environment(os.environ)
            print(f"Worktree and environment of {other.sha[:12]} (about 6 GB): {other.tree}", flush=True)
            other.make_tree()
            other.prepare(outside)
            before = _say_state(root)
            _take_turns({THIS: root, OTHER: other.tree}, chosen, outside, comparison)
            if _state(root) != before:
                raise CompareError("this tree changed during the comparison, so its figures are of no one tree")
        if chosen.remove:
            removed = other.remove()
            print(f"{other.tree} {'is removed' if removed else 'is not a worktree; nothing is removed'}.")
        else:
            print(f"{other.tree} stays for the next comparison; --remove removes it.")


def _has_benchmark(other: OtherCommit, name: str) -> bool:
    """Returns whether the commit has a benchmark: a folder, or in older commits a file."""
    return other.has(f"benchmarks/{name}/__main__.py") or other.has(f"benchmarks/{name}.py")


def _take_turns(
    trees: Mapping[str, Path], chosen: argparse.Namespace, outside: Mapping[str, str], comparison: Comparison
) -> None:
    for turn in range(chosen.turns):
        for bench in chosen.benchmarks:
            figures: dict[str, list[Figure]] = {}
            seconds: dict[str, float] = {}
            for side in rotated((THIS, OTHER), turn):
                begin = time.monotonic()
                figures[side] = _run_again_once(trees[side], bench, chosen.options, outside)
                seconds[side] = time.monotonic() - begin
            took = ", ".join(f"{side} {spent:.0f} s" for side, spent in seconds.items())
            print(f"turn {turn + 1} of {chosen.turns}, {bench}: {took}", flush=True)
            comparison.add(bench, figures[THIS], figures[OTHER])


def _run_again_once(tree: Path, bench: str, options: Sequence[str], outside: Mapping[str, str]) -> list[Figure]:
    """Runs a benchmark, and once more if it fails: one stall of a busy machine must not cost all turns."""
    try:
        return run_benchmark(tree, bench, options, outside)
    except BenchmarkError as error:
        print(f"{error}\nIt is run once more.", flush=True)
        return run_benchmark(tree, bench, options, outside)


def _say_state(root: Path) -> str:
    """Prints which tree is measured, and returns its state."""
    head = git(root, "rev-parse", "--short=12", "HEAD").stdout.strip()
    changed = len(git(root, "status", "--porcelain").stdout.splitlines())
    note = f", with uncommitted changes of {changed} file{'s' * (changed != 1)}" if changed else ""
    print(f"This tree: {head}{note} ({root})", flush=True)
    return _state(root)


def _state(root: Path) -> str:
    """Returns a digest of the measured tree: of its commit and of all changes that are not committed."""
    content = hashlib.sha256(git(root, "rev-parse", "HEAD").stdout.encode())
    content.update(git(root, "diff", "HEAD", "--binary").stdout.encode())
    for name in git(root, "ls-files", "--others", "--exclude-standard", "-z").stdout.split("\0"):
        path = root / name
        content.update(name.encode() + b"\0" + (path.read_bytes() if name and path.is_file() else b""))
    return content.hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other comparisons from using the folder at the same time. They would also disturb the figures."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("w")
    except OSError as error:
        raise CompareError(f"{folder} cannot be written ({error.strerror}); --folder names another one") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CompareError(f"another comparison uses {folder}; wait for its end") from error
        yield


def _stop(*_: object) -> None:
    """Handles SIGTERM: raises CompareError. Everything that was started then ends, as on Ctrl-C."""
    raise CompareError("it was told to end (SIGTERM), so nothing is decided")


def main(given: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Runs the comparison. Returns 0 if this tree is not slower, 1 if it is slower or undecided, 2 after an error."""
    chosen = parse(sys.argv[1:] if given is None else given)
    signal.signal(signal.SIGTERM, _stop)
    comparison, failure = Comparison(), None
    try:
        compare(root, chosen, comparison)
    except CompareError as error:
        failure = error
    if comparison.turns:
        print(comparison.table())
        if chosen.json:
            chosen.json.write_text(json.dumps(comparison.as_json(), indent=2, allow_nan=False) + "\n")
    if failure is not None:
        print(f"bench compare: {failure}.", file=sys.stderr)
        return 2
    return 0 if comparison.is_not_slower or not chosen.benchmarks else 1


if __name__ == "__main__":
    sys.exit(main())
