"""The tests pass where ROS's launch packages are installed. Their pytest plugins load in every run of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PLUGINS = ("launch_testing", "launch_ros", "launch_pytest")  # by the names of their entry points


def run_pytest(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, which also finds modules and plugins in `path`."""
    search = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        timeout=100,
    )


def test_pytest_starts_where_a_launch_plugin_cannot_load(tmp_path: Path) -> None:
    """launch_testing 3.4.3's cannot in pytest 9: one of its hooks takes an argument that pytest 9 no longer has."""
    (tmp_path / "outdated.py").write_text("def pytest_pycollect_makemodule(an_argument_of_old): ...\n")
    information = tmp_path / "outdated-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: outdated\nVersion: 1\n")
    entries = "".join(f"{name} = outdated\n" for name in PLUGINS)
    (information / "entry_points.txt").write_text(f"[pytest11]\n{entries}")
    result = run_pytest("--collect-only", "measurements/test_record.py", path=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "files",
    [
        pytest.param(["measurements/test_database.py", "telemetry/test_trace.py"], id="logging"),
        pytest.param(["cli/test_split_points.py", "split/test_split_points.py"], id="files-of-one-name"),
    ],
)
def test_tests_hold_with_an_active_launch_plugin(files: list[str]) -> None:
    result = run_pytest("-p", "launch_stand_in", *files, path=HERE / "helpers")
    assert result.returncode == 0, result.stdout + result.stderr
