"""No executable runs a module that lies in the working folder, however Python comes to search there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from split_infer_ros.__main__ import executables

PACKAGE = Path(__file__).parents[1] / "split_infer_ros"
PREFIX = Path(sys.prefix)  # of an environment that scripts/run made
CHILD_S = 200  # a bound on each process; the test's own bound lies above it

# What Python, the wheels of ROS and the engines import by themselves, or by names that are texts.
OTHERS = {"encodings", "linecache", "onnx2torch", "onnxruntime", "openvino", "pkgutil", "runpy", "sitecustomize"}
NOTHING = ("--ros-args", "-p", "model:=nothing")
ARGUMENTS = {
    "backbone": NOTHING,
    "camera": ("--ros-args", "-p", "source:=nothing"),
    "doctor": (),
    "head": NOTHING,
    "pipeline": NOTHING,
    "stats": ("--ros-args", "-p", "nothing:=1"),
    "tenants": ("--ros-args", "-p", "nothing:=1"),
}

pytestmark = [
    pytest.mark.timeout(2 * CHILD_S),
    pytest.mark.skipif(
        not (PREFIX / "lib/split_infer_ros/doctor").is_file(),
        reason="the executables lie elsewhere; scripts/run has them",
    ),
]

NETS = """
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@cache
def imported_names() -> set[str]:
    """The first part of the name of every module that the package's source imports, wherever it does."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a module of each name that the package imports. Each writes its name into ``ran`` when it runs."""
    names = imported_names() | OTHERS
    assert {"__future__", "cv_bridge", "onnx", "openvino", "random", "rclpy", "split_infer_ros", "torch"} < names
    for name in names:
        Path(tmp_path, f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    return tmp_path


@pytest.fixture
def run(planted: Path) -> Run:
    """A function that runs a command in the planted folder, and finds that nothing there ran."""

    def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"PATH": f"{PREFIX / 'bin'}:{os.environ['PATH']}", **variables}
        done = subprocess.run(
            command, cwd=planted, env=environment, capture_output=True, text=True, timeout=CHILD_S, check=False
        )
        ran = planted / "ran"
        assert not ran.exists(), f"{ran.read_text()} ran; {done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    return run


def executable(name: str) -> Path:
    return PREFIX / "lib/split_infer_ros" / name


# The next test runs split_points, with all of its imports.
@pytest.mark.parametrize("name", [name for name in executables() if name != "split_points"])
def test_no_executable_imports_from_the_working_folder(name: str, run: Run) -> None:
    run(executable(name), *ARGUMENTS.get(name, ("--help",)), PYTHONPATH=":")


def test_no_form_of_the_path_leads_there(run: Run, planted: Path) -> None:
    """Neither do relative and empty entries, nor the working folder by its name."""
    assert run(executable("split_points"), "shapes", PYTHONPATH=f".:relative:{planted}:").returncode == 0


def test_the_command_for_all_imports_nothing_there(run: Run) -> None:
    assert run(PREFIX / "bin/split_infer_ros", "split_points", "shapes", PYTHONPATH=":").returncode == 0


def test_python_m_imports_nothing_more_there(run: Run, planted: Path) -> None:
    """``python -m`` reads the module that it names in the working folder, and first what it needs itself."""
    told = "import runpy, importlib.util, sys; print(*sys.modules)"
    its_own = subprocess.run([sys.executable, "-I", "-c", told], capture_output=True, text=True, check=True)
    for name in ("split_infer_ros", *its_own.stdout.split()):
        Path(planted, f"{name}.py").unlink(missing_ok=True)
    assert {"json.py", "random.py", "torch.py"} <= {path.name for path in planted.iterdir()}
    assert run(PREFIX / "bin/python", "-m", "split_infer_ros", "split_points", "shapes").returncode == 0


@pytest.mark.parametrize("path", ["", ":"], ids=["no path", "empty"])
def test_the_inspection_of_a_file_runs_nothing_there(path: str, run: Run, planted: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnx
    from onnx_files import network, ultralytics

    model = planted / "det.onnx"
    onnx.save(network(84, 21, metadata=ultralytics(imgsz="[32, 32]")), model)
    done = run(executable("split_points"), str(model), **({"PYTHONPATH": path} if path else {}))
    assert done.returncode == 0, done.stderr
    assert "det.onnx" in done.stdout


def test_trials_run_nothing_there(run: Run, planted: Path) -> None:
    tuning = ("shapes", "--device", "cpu", "--seconds", "5", "--database", str(planted / "tuning.jsonl"))
    assert run(executable("tune"), *tuning, PYTHONPATH=":").returncode == 0


def test_programs_and_libraries_come_from_elsewhere(run: Run, planted: Path) -> None:
    """Modules do too, where PYTHONPATH is not set."""
    program = planted / "python3"
    program.write_text(f"#!/bin/sh\necho python3 >>{planted / 'ran'}\n")
    program.chmod(0o755)
    path = f":.:{PREFIX / 'bin'}:{os.environ['PATH']}"
    assert run(executable("split_points"), "shapes", PATH=path, LD_LIBRARY_PATH=":").returncode == 0


def test_users_modules_are_found_when_allowed(run: Run, planted: Path) -> None:
    (planted / "my_nets.py").write_text(NETS)
    command = executable("split_points"), "my_nets:small", "--weights", "none"
    refused = run(*command, PYTHONPATH=str(planted))
    assert refused.returncode == 1
    assert "allow_user_code" in refused.stderr
    assert run(*command, "--allow-user-code", PYTHONPATH=str(planted)).returncode == 0
    assert run(*command, "--allow-user-code", PYTHONPATH=".").returncode == 0
    unnamed = run(*command, "--allow-user-code", PYTHONPATH=":")
    assert unnamed.returncode == 1
    assert "No module named 'my_nets'" in unnamed.stderr
