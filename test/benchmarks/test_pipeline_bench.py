"""Does the benchmark run and report? What it finds depends on the machine and is not for a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("rclpy")
LIMIT_S = 240.0
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import pipeline
from split_infer_ros.telemetry.report import arguments, deliver
deliver(pipeline.run(rounds=1, seconds=0.2, messages=2), arguments("").parse_args())
"""


def run_to_end(command: list[str | Path]) -> tuple[int, str]:
    """The exit code and what was printed; nothing that it started stays behind."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, printed


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
def test_the_pipeline_benchmark_reports_in_the_common_form(tmp_path):
    path = tmp_path / "p.json"
    command = [sys.executable, "-c", RUN, BENCHMARKS, "--json", path]
    code, printed = run_to_end(command)
    assert code == 0, printed
    report = json.loads(path.read_text())
    assert set(report) == {"bench", "machine", "claims", "rows"}
    assert report["bench"] == "pipeline"
    assert [claim["goal"] for claim in report["claims"]] == [">= 2", "<= 0.75", ">= 5", ">= 30"]
    for claim in report["claims"]:
        assert set(claim) == {"name", "value", "unit", "goal", "holds"}
        assert claim["value"] > 0
        assert claim["name"] in printed
    measured = {(row["what"], row["rival"]) for row in report["rows"]}
    assert {(what, rival) for what in ("saturation", "latency") for rival in ("pipeline", "naive")} <= measured
    assert {("hop", "pipeline"), ("hop", "DDS")} <= measured
