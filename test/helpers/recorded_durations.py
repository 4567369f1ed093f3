"""Records how long each test file takes, for ``scripts/check``."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest


class RecordedDurations:
    """A plugin for pytest that writes the seconds of each test file, with the machine, to a JSON file.

    With several workers, only the process that collects their reports may have the plugin.

    Args:
        path: the JSON file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            return  # the run was cut short
        from split_infer_ros.telemetry.machine import describe_machine  # most runs do without

        machine = describe_machine()
        about = {name: machine[name] for name in ("cpu", "instruction_set", "cores")}
        seconds = {path: round(seconds, 1) for path, seconds in sorted(self._seconds.items())}
        self._path.write_text(json.dumps({"machine": about, "seconds": seconds}, indent=1) + "\n")
