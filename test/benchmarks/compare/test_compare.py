"""`bench compare` on a small repository, whose scripts/run and benchmark stand in for the real ones."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.compare.__main__ import main
from benchmarks.compare.other_commit import OtherCommit, outside_environment

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
RUN = """#!/usr/bin/env bash
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
if [ "$1" = true ]; then echo made >"$here/.venv"; exit; fi
[ -f "$here/.venv" ] || [ ! -f "$here/.git" ] || exit 9
exec python3 "$here/benchmarks/$2" "${@:3}"
"""
BENCHMARK = """
import argparse, json, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--json")
parser.add_argument("--quick", action="store_true")
parser.add_argument("--seconds")
chosen = parser.parse_args()
cache = pathlib.Path(os.environ["XDG_CACHE_HOME"])
assert not cache.exists()
cache.mkdir()
with open(os.environ["CALLS"], "a") as calls:
    print(SPEED, chosen.quick, chosen.seconds, file=calls)
row = {"what": "saturation", "rival": "pipeline", "frames_per_s": SPEED}
report = {"bench": "pipeline", "machine": {"cores": 2}, "rows": [row, {"what": "x", "rival": "naive"}]}
json.dump(report, open(chosen.json, "w"))
"""
GIT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", root, *arguments], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def worktrees(root: Path) -> int:
    return len(git(root, "worktree", "list").splitlines())


def benchmark_of(root: Path) -> Path:
    return root / "benchmarks" / "pipeline" / "__main__.py"


def write_benchmark(root: Path, speed: float) -> None:
    benchmark_of(root).write_text(BENCHMARK.replace("SPEED", str(speed)))


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Keeps this process's handler of SIGTERM, which ``main`` replaces."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose first commit serves 10 frames a second and whose second serves 8."""
    for name, value in GIT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("GIT_DIR", raising=False)
    root = tmp_path / "root"
    benchmark_of(root).parent.mkdir(parents=True)
    (root / "scripts").mkdir()
    (root / "scripts" / "run").write_text(RUN)
    (root / "scripts" / "run").chmod(0o755)
    (root / ".gitignore").write_text(".venv\n__pycache__/\n")
    git(tmp_path, "init", "--quiet", str(root))
    for speed in (10.0, 8.0):
        write_benchmark(root, speed)
        git(root, "add", ".")
        git(root, "commit", "--quiet", "-m", f"{speed}")
    return root


def compare(root: Path, *arguments: str) -> int:
    return main([*arguments, "--folder", str(root.parent / "kept")], root)


def test_both_trees_run_their_own_benchmark_in_turns(root: Path, tmp_path: Path, capsys):
    assert compare(root, "HEAD~1", "pipeline", "--quick", "--json", str(tmp_path / "out.json")) == 1
    calls = (tmp_path / "calls").read_text().split("\n")[:-1]
    this, other = "8.0 True 20", "10.0 True 20"
    assert calls[:4] == [this, other, other, this]
    assert len(calls) == 12
    out = capsys.readouterr().out
    assert "SLOWER" in out
    assert "0.800" in out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["verdict"] == "slower"
    assert written["figures"][0]["name"] == "pipeline, saturation: frames"


def test_uncommitted_changes_are_measured_and_said(root: Path, capsys):
    write_benchmark(root, 10.0)
    assert compare(root, "HEAD~1", "pipeline") == 0
    out = capsys.readouterr().out
    assert "with uncommitted changes of 1 file " in out
    assert "NOT SLOWER" in out
    assert git(root, "status", "--porcelain") == "M benchmarks/pipeline/__main__.py"


def test_older_commits_have_a_file_for_each_benchmark(root: Path, tmp_path: Path):
    benchmark_of(root).rename(root / "benchmarks" / "pipeline.py")
    (root / "scripts" / "run").write_text(RUN.replace("/$2", "/$2.py"))
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "as it was")
    git(root, "revert", "--no-edit", "HEAD")
    assert compare(root, "HEAD~1", "pipeline") == 0
    assert len((tmp_path / "calls").read_text().splitlines()) == 12


@pytest.mark.parametrize("failures", [1, 2])
def test_a_benchmark_that_fails_is_run_once_more(root: Path, tmp_path: Path, capsys, failures: int):
    """The fourth call fails; with two failures the fifth, which repeats it, does as well."""
    path = benchmark_of(root)
    fail = f"\nif 3 < len(open(os.environ['CALLS']).readlines()) <= {3 + failures}:\n    raise SystemExit('a stall')\n"
    path.write_text(path.read_text() + fail)
    code = compare(root, "HEAD~1", "pipeline", "--turns", "2", "--json", str(tmp_path / "out.json"))
    assert len((tmp_path / "calls").read_text().splitlines()) == 5
    said = capsys.readouterr()
    assert "It is run once more." in said.out
    assert json.loads((tmp_path / "out.json").read_text())["figures"][0]["turns"] == 3 - failures
    assert code == (1 if failures == 1 else 2)
    assert ("a stall" in said.err) is (failures == 2)


def test_a_tree_that_changes_meanwhile_is_refused(root: Path, capsys):
    path = benchmark_of(root)
    path.write_text(path.read_text() + "\nopen(__file__, 'a').write('# more\\n')\n")
    assert compare(root, "HEAD~1", "pipeline", "--turns", "1") == 2
    assert "this tree changed during the comparison" in capsys.readouterr().err


def test_a_worktree_is_kept_used_again_and_removed(root: Path, capsys):
    compare(root, "HEAD~1", "pipeline", "--turns", "1")
    (tree,) = [path for path in (root.parent / "kept").iterdir() if path.is_dir()]
    made = (tree / ".venv").stat().st_ino
    compare(root, "HEAD~1", "pipeline", "--turns", "1")
    assert (tree / ".venv").stat().st_ino == made
    assert worktrees(root) == 2
    assert compare(root, "HEAD~1", "--remove") == 0
    assert not tree.exists()
    assert worktrees(root) == 1
    assert f"{tree} is removed" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["gone", "no .git", "file missing", "locked", "other commit"])
def test_what_an_interruption_left_is_made_anew(root: Path, damage: str):
    other = OtherCommit(root, "HEAD~1", root.parent / "kept")
    other.make_tree()
    tree = other.tree
    if damage == "gone":
        subprocess.run(["rm", "-r", tree], check=True, timeout=60)
    elif damage == "no .git":
        (tree / ".git").unlink()
    elif damage == "file missing":
        benchmark_of(tree).unlink()
    elif damage == "locked":  # as `git worktree add` leaves it when it is killed
        git(root, "worktree", "lock", "--reason", "initializing", str(tree))
        (tree / "scripts" / "run").unlink()
    else:
        git(tree, "checkout", "--quiet", "HEAD~0")
        git(tree, "commit", "--quiet", "--allow-empty", "-m", "more")
    other.make_tree()
    assert git(tree, "rev-parse", "HEAD") == other.sha
    assert git(tree, "status", "--porcelain") == ""
    assert worktrees(root) == 2


def test_a_folder_of_the_users_is_not_removed(root: Path, capsys):
    tree = OtherCommit(root, "HEAD~1", root.parent / "kept").tree
    tree.mkdir(parents=True)
    (tree / "mine").write_text("x")
    assert compare(root, "HEAD~1", "pipeline") == 2
    assert "is not a worktree of" in capsys.readouterr().err
    assert compare(root, "HEAD~1", "--remove") == 0
    assert (tree / "mine").exists()
    assert worktrees(root) == 1


def test_two_comparisons_at_once_are_refused(root: Path, capsys):
    (root.parent / "kept").mkdir()
    with (root.parent / "kept" / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert compare(root, "HEAD~1", "pipeline") == 2
    assert "another comparison uses" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothing", "pipeline"], "there is no commit 'nothing'"),
        (["HEAD", "detector"], "has no benchmark 'detector'"),
        (["HEAD", "pipeline", "--turns", "1", "--", "--models", "x"], "unrecognized arguments: --models x"),
    ],
)
def test_what_is_not_possible_is_said_in_a_sentence(root: Path, capsys, arguments: list[str], words: str):
    assert main(["--folder", str(root.parent / "kept"), *arguments], root) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_ends_with_the_comparison(root: Path, tmp_path: Path, told: signal.Signals):
    endless = (
        "import os, pathlib, time\npathlib.Path(os.environ['CALLS']).write_text(str(os.getpid()))\ntime.sleep(999)\n"
    )
    benchmark_of(root).write_text(endless)
    code = "import sys, pathlib\nfrom benchmarks.compare.__main__ import main\nsys.exit(main(root=pathlib.Path.cwd()))"
    command = [sys.executable, "-c", code]
    command += ["HEAD", "pipeline", "--folder", str(tmp_path / "kept")]
    calls = tmp_path / "calls"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *filter(None, sys.path)])}
    ignored = signal.signal(told, signal.SIG_DFL)  # a shell's background has SIGINT ignored, which a process hands down
    try:
        started = subprocess.Popen(command, cwd=root, env=environment)
    finally:
        signal.signal(told, ignored)
    with started as comparison:
        wait_until(lambda: calls.exists() and calls.read_text() != "")
        benchmark = int(calls.read_text())
        comparison.send_signal(told)
        assert comparison.wait(60) != 0
    assert not Path(f"/proc/{benchmark}").exists()


@pytest.mark.parametrize("arguments", [["HEAD"], ["HEAD", "engines"], ["HEAD", "pipeline", "--turns", "0"]])
def test_wrong_arguments_are_refused(root: Path, arguments: list[str]):
    with pytest.raises(SystemExit) as refused:
        compare(root, *arguments)
    assert refused.value.code == 2


def test_a_folder_without_git_is_refused(tmp_path: Path, capsys):
    assert main(["HEAD", "pipeline", "--folder", str(tmp_path / "kept")], tmp_path) == 2
    assert "is not a git checkout" in capsys.readouterr().err


def test_the_other_tree_does_not_see_this_environment():
    entered = {
        "VIRTUAL_ENV": "/w/.venv",
        "PATH": "/w/.venv/bin:/usr/bin:/w/.venv2/bin",
        "LD_LIBRARY_PATH": "/w/.venv/lib",
        "AMENT_PREFIX_PATH": "/w/.venv:/opt/ros/jazzy",
        "HOME": "/home/x",
    }
    assert outside_environment(entered) == {
        "PATH": "/usr/bin:/w/.venv2/bin",
        "AMENT_PREFIX_PATH": "/opt/ros/jazzy",
        "HOME": "/home/x",
    }
