"""A plugin for pytest.

It notes each test when it begins and when it ends, so that a killed run shows how far it came.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--notes", type=Path, metavar="FILE", help="where to note what became of each test")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--notes")
    if path is not None:
        config.pluginmanager.register(Notes(path))


class Notes:
    """Writes a line of JSON for each event: ``test``, ``outcome`` and ``reason``.

    Args:
        path: the file. It is made anew.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write(nodeid, "begun", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, report.outcome, _reason(report.longrepr))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.outcome != "passed":
            self._write(report.nodeid, report.outcome, _reason(report.longrepr))

    def _write(self, test: str, outcome: str, reason: str) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "reason": reason}) + "\n")


def _reason(entry: Any) -> str:
    """Returns the first line of an error, or why a test was skipped."""
    if isinstance(entry, tuple):
        return str(entry[2]).removeprefix("Skipped: ")
    crash = getattr(entry, "reprcrash", None)
    return str(crash.message if crash else entry or "").partition("\n")[0]
