"""The launch file restarts a process that lost its GPU, and no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from lost_device import SAID
from ros_support import START_S, wait_until

for needed in ("launch", "launch_ros"):
    pytest.importorskip(needed, reason=f"test_respawn.py needs {needed}")

ROOT = Path(__file__).parents[2]
LAUNCH_FILE = ROOT / "launch" / "pipeline.launch.py"
LAUNCH = """
import signal
import sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a script that runs tests in the background ignores it
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
arguments = [argument.split(":=") for argument in sys.argv[2:]]
source = PythonLaunchDescriptionSource(sys.argv[1])
service = LaunchService()
service.include_launch_description(
    LaunchDescription([IncludeLaunchDescription(source, launch_arguments=arguments)])
)
sys.exit(service.run())
"""
PYTHON = Path(sys.executable).parent  # executables of the package take the first python3 that they find
LOSES = ("model:=lost_device:model", "allow_user_code:=true")
pytestmark = [pytest.mark.timeout(4 * START_S), pytest.mark.kills_nodes]  # a lost GPU ends a process at once


def before(folder: Path, variable: str) -> str:
    """Returns an environment variable's value with a folder in front."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get(variable, "")]))


class Launch:
    """A process that launches the pipeline. Its output is kept."""

    def __init__(self, *arguments: str) -> None:
        self._printed = tempfile.TemporaryFile("w+")
        self._popen = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(LAUNCH_FILE), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "PYTHONPATH": before(ROOT / "test" / "helpers", "PYTHONPATH"),
                "PATH": before(PYTHON, "PATH"),
            },
            start_new_session=True,
        )

    @property
    def printed(self) -> str:
        """Everything that it and its processes printed so far."""
        self._printed.seek(0)
        return self._printed.read()

    @property
    def runs(self) -> bool:
        """False once it has ended."""
        return self._popen.poll() is None

    def interrupt(self) -> None:
        """Interrupts it as Ctrl-C does."""
        os.killpg(self._popen.pid, signal.SIGINT)

    def wait(self) -> None:
        """Waits until it has ended by itself."""
        try:
            self._popen.wait(START_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it still runs after {START_S:g} s; it printed:\n{self.printed}")

    def kill(self) -> None:
        """Kills it and all that it started."""
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._printed.close()


@contextmanager
def launched(*arguments: str) -> Iterator[Launch]:
    found = Launch(*arguments)
    try:
        yield found
    finally:
        found.kill()


def test_process_restarts_after_a_lost_gpu(ros_domain: int) -> None:
    with launched(*LOSES) as launch:
        wait_until(lambda: launch.printed.count(SAID) >= 2 or not launch.runs, "a second start", 2 * START_S)
        assert launch.printed.count(SAID) == 2, launch.printed
        launch.interrupt()
        launch.wait()


@pytest.mark.parametrize(
    ("arguments", "expected_line"),
    [
        ((*LOSES, "respawn:=false"), SAID),
        (("model:=nothing_of_this_name",), "error: "),
        (("transport:=network", "config:=live_camera"), "transport cannot be 'network' without tenants"),
    ],
    ids=["respawn is off", "another error", "no tenants"],
)
def test_other_failures_are_not_restarted(ros_domain: int, arguments: tuple[str, ...], expected_line: str) -> None:
    with launched(*arguments) as launch:
        launch.wait()
        assert launch.printed.count(expected_line) == 1, launch.printed
