"""How benchmarks start, and that no folder of theirs needs more than it should."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import __main__
from benchmarks.common.child_process import to_run

FOLDER = Path(__main__.__file__).parent
COMMANDS = sorted(path.parent.name for path in FOLDER.glob("*/__main__.py"))
SHARED = {"common": ["common"], "ros": ["common", "ros"], "rivals": ["common", "rivals"]}
ROS = {"cv_bridge", "rclpy", "sensor_msgs", "std_msgs", "vision_msgs"}


def imported(path: Path) -> Iterator[str]:
    """Yields the dotted names that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_each_command_has_a_main() -> None:
    assert {"compare", "pipeline", "tuning"} <= set(COMMANDS)
    for name in COMMANDS:
        nodes = ast.parse((FOLDER / name / "__main__.py").read_text()).body
        assert "main" in [node.name for node in nodes if isinstance(node, ast.FunctionDef)], name


@pytest.mark.parametrize("arguments", [(), ("nothing",), ("common.nothing",), ("common",)])
def test_an_unknown_name_gets_the_list(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    assert __main__.main() == 2
    assert ", ".join(COMMANDS) in capsys.readouterr().err


def test_a_benchmark_imports_nothing_from_the_working_folder(tmp_path: Path) -> None:
    for name in ("argparse", "benchmarks", "common", "compare", "json", "pathlib", "random"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} ran')\n")
    done = run(*to_run("benchmarks.compare"), "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: bench compare ")


def test_folders_need_only_themselves_and_what_is_shared() -> None:
    for path in FOLDER.rglob("*.py"):
        folder = path.relative_to(FOLDER).parts[0]
        may = SHARED.get(folder, [*SHARED, folder])
        own = [name.split(".")[1] for name in imported(path) if name.startswith("benchmarks.")]
        assert set(own) <= set(may), path


def test_what_is_common_needs_no_ros() -> None:
    for path in (FOLDER / "common").glob("*.py"):
        assert not ROS & {name.partition(".")[0] for name in imported(path)}, path
        assert not [name for name in imported(path) if name.startswith("split_infer_ros.nodes")], path
