"""``/stats`` and ``/diagnostics`` tell the memory of the backbone's process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.context import Context
from ros_pipeline import Pipeline
from ros_support import START_S, wait_until

from split_infer_ros.msg import PipelineReport, PipelineStats
from split_infer_ros.nodes.health import PipelineHealth

MIB = 2**20
CAMERA = {"width": 64, "height": 48, "rate_hz": 20.0}


def test_stats_have_the_memory_of_the_process(context: Context, tmp_path: Path) -> None:
    backbone = {"tuning_database": str(tmp_path / "none.jsonl")}
    with Pipeline(context, stats={"period_s": 0.2}, head={}, backbone=backbone, camera=CAMERA) as pipeline:
        stats = pipeline.client.subscribe(PipelineStats, "stats")
        diagnostics = pipeline.client.subscribe(DiagnosticArray, "/diagnostics")
        wait_until(lambda: len(stats) > 1 and len(diagnostics) > 0, "stats", START_S)
    report = stats[-1].report
    assert 20 * MIB < report.anonymous_bytes < report.resident_bytes
    assert report.pool_bytes + report.model_bytes < report.resident_bytes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of glibc's")
def test_all_threads_of_an_executable_share_one_heap(tmp_path: Path) -> None:
    """Memory that one thread freed serves the others. ROS starts threads as it is imported."""
    (tmp_path / "heaps.py").write_text(
        """
import ctypes
import split_infer_ros.nodes.pipeline

def main():
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    out = ctypes.c_void_p(libc.fdopen(1, b"w"))
    libc.malloc_info(0, out)
    libc.fflush(out)
"""
    )
    code = "from split_infer_ros import __main__ as m; m.executables = lambda: {'heaps': 'heaps'}; m.run('heaps')"
    told = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=START_S,
    ).stdout
    assert told.count("<heap nr=") == 1


def test_diagnostics_name_the_memory_of_the_process() -> None:
    health = PipelineHealth(PipelineReport(resident_bytes=3_000_000, anonymous_bytes=2_000_000), 0.0)
    values = health.diagnostic_values(health.take_rates())
    assert values["memory of the process (bytes)"] == "3,000,000"
    assert values["memory of the process in no file (bytes)"] == "2,000,000"


def test_a_tenant_without_counts_tells_no_memory() -> None:
    report = PipelineReport(tenant="front", state=PipelineReport.LOADING)
    assert (report.resident_bytes, report.anonymous_bytes) == (0, 0)
