"""Runs each file of test/launch as one test of pytest. ROS's ``launch_test`` runs the file in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from domains import own_domain

SECONDS = 110  # less than a test may take, so that what was launched is ended as well


class LaunchTest(pytest.Item):
    """One run of ``launch_test``. If it fails, pytest shows everything that it printed."""

    def runtest(self) -> None:
        command = [sys.executable, "-m", "launch_testing.launch_test", str(self.path)]
        with (
            own_domain(str(self.path)),
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
            ) as process,
        ):
            try:
                printed, _ = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                printed = f"{process.communicate()[0]}\nlaunch_test was ended after {SECONDS} s."
        if process.returncode != 0:
            pytest.fail(printed, pytrace=False)


class LaunchFile(pytest.File):
    """A file of test/launch, which becomes one ``LaunchTest``. pytest does not import it."""

    def collect(self) -> Iterator[LaunchTest]:
        yield LaunchTest.from_parent(self, name="launch_test")
