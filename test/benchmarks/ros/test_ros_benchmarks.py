"""Do the benchmarks of ROS nodes run and report? What they find depends on the machine and is not for a test."""

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
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
GOALS = {
    "pipeline": [">= 3", "<= 0.75", ">= 5", ">= 30"],
    "transports": [">= 30", ">= 10", "<= 2", "<= 2", ">= 0.8", "<= 0.333333", ">= 0.95"],
    "overload": [">= 2", "<= 0.9216", "<= 0", "<= 5", "<= 2"],
    "start": ["<= 2", "<= 2", "<= 1.7", "<= 1.7"],
    "tenants": [">= 1.2", "<= 1", ">= 0.97", "<= 0.9", "<= 0.6", "<= 1", "<= 0.9"],
}
MEASURED = {
    "pipeline": {
        ("saturation", "pipeline"),
        ("saturation", "naive"),
        ("latency", "pipeline"),
        ("latency", "naive"),
        ("hop", "pipeline"),
        ("hop", "DDS"),
    },
    "transports": {
        ("hop", "intra_process"),
        ("hop", "shared_memory"),
        ("hop", "network"),
        ("hop", "plain DDS"),
        ("frames", "intra_process"),
        ("frames", "shared_memory"),
        ("1080p", "shipped profile"),
        ("1080p", "default profile"),
    },
    "overload": {("moderate", None), ("flooded", None), ("stretch of flood", None), ("ledger", None)},
    "start": {("start", "pipeline_openvino"), ("start", "usual_openvino_fp32")},
    "tenants": {
        (f"2 cameras, 1 model, {load}", rival)
        for load in ("cameras too fast", "half load")
        for rival in ("tenants", "usual", "pipelines")
    }
    | {("2 cameras, 1 model, reports", rival) for rival in ("tenants", "pipelines")},
}
TWINS = {("start", "usual_openvino_as_it_compiles")}  # where OpenVINO's default is another precision than fp32


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
@pytest.mark.parametrize("name", GOALS)
def test_ros_benchmark_reports_in_the_common_form(name, tmp_path):
    path = tmp_path / "found.json"
    command = [sys.executable, BENCHMARKS, name, "--quick", "--seconds", "5", "--json", path]
    code, printed = run_to_end(command)
    assert code == 0, printed
    report = json.loads(path.read_text())
    assert report["bench"] == name
    assert [claim["goal"] for claim in report["claims"]] == GOALS[name]
    for claim in report["claims"]:
        assert claim["name"] in printed
        assert claim["value"] is not None
    assert {(row["what"], row.get("rival")) for row in report["rows"]} - TWINS == MEASURED[name]
    for row in report["rows"]:
        assert 0 <= row.get("backbone_busy", 0) <= 1
        assert 0 <= row.get("head_busy", 0) <= 1
        assert row.get("peak_mb", 1) > 0
