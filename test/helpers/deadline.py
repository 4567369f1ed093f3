"""Bounds how long a run of tests takes, for ``scripts/check``."""

from __future__ import annotations

import time

import pytest

NO_TIME = "no time was left"


class Deadline:
    """A plugin for pytest that skips the tests which have not begun at a time, and names their files at the end.

    With several workers, all processes need the plugin.

    Args:
        seconds: the time, in seconds since 1970.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._cut: dict[str, int] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.time() > self._seconds:
            pytest.skip(NO_TIME)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and NO_TIME in report.longreprtext:
            path = report.nodeid.partition("::")[0]
            self._cut[path] = self._cut.get(path, 0) + 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._cut:
            terminalreporter.write_line(f"Skipped, since {NO_TIME}:")
            for path, tests in self._cut.items():
                terminalreporter.write_line(f"  {path}, {tests} tests")
