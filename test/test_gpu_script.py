"""scripts/gpu, as far as it goes without a GPU: budgets, exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import gpu_run
import gpu_steps
import pytest
from gpu_pieces import PIECES, SANITIZER, UNSANITIZED, Piece
from gpu_steps import FAILED, LEFT_OUT, OVER_BUDGET, PASSED, ROOT, Step

from benchmarks.common.claim import Claim
from benchmarks.common.estimate import Estimate

MACHINE = {"gpu": "A GPU", "driver": "1.2", "torch": "2.11", "cuda": "13.0", "triton": "3.6", "python": "3.12"}
MACHINE |= {"cpu": "A CPU", "cores": 16}
WELL, BADLY = [sys.executable, "-c", "pass"], [sys.executable, "-c", "print('what befell it'); exit(7)"]
HANGS = "import time\ndef test_good(): pass\ndef test_bad(): assert 1 == 2\ndef test_hangs(): time.sleep(60)\n"
CLAIM = Claim("speed", Estimate(2.0, 1.8, 2.3, 12, 12), "x", 1.0).as_json()


def environment() -> dict[str, str]:
    # Outside the project nothing switches off ROS's plugins, of which one does not load in pytest 9. Options of the run
    # that this test belongs to may name plugins that PYTHONPATH hides from the inner run, which would then fail.
    others = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return {**others, "PYTHONPATH": f"{ROOT / 'scripts'}", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def run(step: Step, tmp_path: Path, left_s: float = 60.0) -> dict[str, object]:
    return step.run(left_s, tmp_path / "log", environment())


def spend_budget_once(monkeypatch: pytest.MonkeyPatch, condition: Callable[[], bool]) -> None:
    """Lets the budget of each step be spent as soon as a condition is true, however long a busy machine takes."""

    class Impatient(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            end = time.monotonic() + (timeout or 0.0)
            while timeout is not None and self.poll() is None:
                if condition() or time.monotonic() > end:
                    raise subprocess.TimeoutExpired(self.args, timeout)
                time.sleep(0.02)
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Impatient)


def is_alive(pid: str) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_without_a_gpu_it_says_so_at_once(tmp_path: Path) -> None:
    """At once means: without importing torch, which takes seconds."""
    (tmp_path / "torch.py").write_text("raise AssertionError('torch was imported')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}
    result = subprocess.run([ROOT / "scripts" / "gpu"], env=variables, capture_output=True, text=True)
    assert result.returncode == gpu_run.CANNOT_RUN == 3
    assert result.stdout == ""
    assert result.stderr == "scripts/gpu: NVIDIA's driver shows no GPU on this machine, so nothing was run.\n"


def test_missing_packages_are_named_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_run, "count_gpus", lambda: 1)
    monkeypatch.setattr(gpu_run, "is_there", lambda module: module not in ("cv2", "cuda.bindings"))
    assert gpu_run.main([]) == 3
    assert "lacks opencv-python-headless, cuda-bindings: install" in capsys.readouterr().err


def test_a_gpu_that_torch_cannot_use_is_no_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_run, "count_gpus", lambda: 1)
    monkeypatch.setattr(gpu_run, "is_there", lambda module: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytest.importorskip("triton")
    assert gpu_run.main(["1"]) == 3
    assert "cannot use this machine's GPU" in capsys.readouterr().err


def test_a_step_over_its_budget_dies_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child = tmp_path / "child"
    spend_budget_once(monkeypatch, lambda: child.exists() and child.read_text() != "")
    code = f"""import pathlib, subprocess, time
started = subprocess.Popen(["sleep", "60"])
pathlib.Path({str(child)!r}).write_text(str(started.pid))
time.sleep(60)"""
    told = run(Step("slow", [sys.executable, "-c", code], 10.0), tmp_path)
    assert told["outcome"] == OVER_BUDGET
    assert told["why"] == "It was killed after its budget of 10 s."
    end = time.monotonic() + 10
    while is_alive(child.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_killed_run_of_tests_says_which_test_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_it.py").write_text(HANGS)
    notes = tmp_path / "notes"
    spend_budget_once(monkeypatch, lambda: notes.exists() and "test_hangs" in notes.read_text())
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "gpu_notes", "--notes", str(notes)]
    told = run(Step("tests", [*command, str(tmp_path / "test_it.py")], 30.0, notes=notes), tmp_path)
    assert told["outcome"] == OVER_BUDGET, (tmp_path / "log").read_text()
    assert str(told["why"]).endswith("test_hangs was running.")
    outcomes = {name.rpartition(":")[2]: found for name, found in told["tests"].items()}
    assert outcomes == {
        "test_good": (PASSED, ""), "test_bad": (FAILED, "assert 1 == 2"), "test_hangs": ("begun", "")
    }  # fmt: skip


def test_steps_are_left_out_or_not_begun_with_a_reason(tmp_path: Path) -> None:
    assert run(Step("x", WELL, 9.0, needs=["no_such_module"]), tmp_path)["outcome"] == LEFT_OUT
    assert run(Step("x", WELL, 9.0), tmp_path, left_s=0.5)["outcome"] == OVER_BUDGET
    assert run(Step("x", BADLY, 60.0), tmp_path)["why"] == "It ended with exit code 7."


@pytest.mark.parametrize(("command", "code"), [(WELL, 0), (BADLY, 1)])
def test_results_of_all_pieces_are_in_one_table(
    command: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(out: Path) -> list[Step]:
        (out / "bench.json").write_text(json.dumps({"claims": [CLAIM]}))
        return [Step("a step", command, 30.0, report=out / "bench.json"), Step("another", WELL, 30.0, needs=["nix"])]

    monkeypatch.setattr(gpu_run, "describe", lambda: MACHINE)
    monkeypatch.setattr(gpu_run, "PIECES", {1: Piece("one", 60.0, steps), 2: Piece("two", 60.0, steps)})
    for piece in ("1", "2"):
        assert gpu_run.main([piece, "--out", str(tmp_path)]) == code
    table = (tmp_path / "summary.md").read_text()
    assert "A GPU, driver 1.2; torch 2.11, CUDA 13.0, triton 3.6" in table
    for piece in ("1", "2"):
        assert f"| {piece} | a step | {FAILED if code else PASSED} |" in table
        assert f"| {piece} | another | left out | 0 |  |  | This machine lacks nix. |" in table
    assert "| a step | speed | 2 x | 1.8 to 2.3 | >= 1 | holds |" in table
    assert ("what befell it" in capsys.readouterr().out) == bool(code)


def test_each_step_leaves_its_result_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step looks at what the first one left, as whoever ends the run then would find it."""
    out, archive = tmp_path / "out", tmp_path / "out" / "results.tar.gz"
    look = f"""import json, pathlib, tarfile
out = pathlib.Path({str(out)!r})
assert [step["name"] for step in json.loads((out / "piece_1.json").read_text())["steps"]] == ["first"]
assert "| 1 | first | passed |" in (out / "summary.md").read_text()
with tarfile.open({str(archive)!r}) as file:
    assert "out/piece_1.json" in file.getnames()"""
    steps = [Step("first", WELL, 30.0), Step("second", [sys.executable, "-c", look], 30.0)]
    monkeypatch.setattr(gpu_run, "describe", lambda: MACHINE)
    monkeypatch.setattr(gpu_run, "PIECES", {1: Piece("one", 60.0, lambda _: steps)})
    assert gpu_run.main(["--out", str(out), "--archive", str(archive)]) == 0
    with tarfile.open(archive) as file:
        assert set(file.getnames()) == {"out", "out/piece_1.json", "out/piece_1.log", "out/summary.md"}


def test_all_pieces_share_the_seconds_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step's budget runs out here by itself."""
    seconds = 5
    monkeypatch.setattr(gpu_steps, "LEAST_S", 1.0)
    slow = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(gpu_run, "describe", lambda: MACHINE)
    pieces = {number: Piece("a piece", 60.0, lambda _: [Step("a step", slow, 60.0)]) for number in (1, 2)}
    monkeypatch.setattr(gpu_run, "PIECES", pieces)
    assert gpu_run.main(["--seconds", str(seconds), "--out", str(tmp_path)]) == 1
    (first,), (second,) = (json.loads((tmp_path / f"piece_{n}.json").read_text())["steps"] for n in (1, 2))
    killed = re.fullmatch(r"It was killed after its budget of (\d+) s\.", first["why"])
    assert killed
    assert int(killed[1]) <= seconds  # less what had passed before the step began
    assert second["why"] == "It was not begun, because the piece's budget was spent."


def test_budgets_are_those_that_were_promised() -> None:
    assert all(piece.seconds <= 9 * 60 for piece in PIECES.values())
    assert sum(piece.seconds for piece in PIECES.values()) <= 32 * 60


def test_each_file_of_gpu_tests_is_in_one_piece(tmp_path: Path) -> None:
    steps = [step for piece in PIECES.values() for step in piece.steps(tmp_path)]
    tests = Counter(
        Path(part).name
        for step in steps
        if step.notes is not None and not step.environment.keys() & SANITIZER.keys()
        for part in step.command
        if part.endswith("_on_gpu.py")
    )
    assert tests == Counter(path.name for path in (ROOT / "test" / "gpu").glob("test_*.py"))
    for step in steps:
        assert all(Path(part).exists() for part in step.command if part.endswith(".py"))


def test_what_the_sanitizer_leaves_out_has_tests() -> None:
    files = {
        Path(part)
        for piece in PIECES.values()
        for step in piece.steps(ROOT)
        if step.environment == SANITIZER
        for part in step.command
        if part.endswith("_on_gpu.py")
    }
    names = [name for file in files for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)]
    for part in UNSANITIZED:
        assert any(part in name for name in names), part
    assert any(all(part not in name for part in UNSANITIZED) for name in names)
