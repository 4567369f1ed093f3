"""What the benchmark of starts measures with, and what it concludes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.start.usage import family_of, memory_mb, processor_seconds

# A process with a child that computes for 0.2 s and waits, and one that computed as long and has ended.
BUSY = "import time\nwhile time.process_time() < 0.2: pass\n"
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {BUSY!r}])
child = subprocess.Popen([sys.executable, "-c", {BUSY + "print(flush=True); input()"!r}], stdin=-1)
input()
child.communicate(b"\\n")
"""


def test_a_familys_processor_time_counts_all_its_children() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=-1, stdout=-1, text=True) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()  # the living child has computed
        family = family_of([parent.pid])
        assert len(family) == 2
        assert processor_seconds(family) >= 0.4 - 4 / 100  # each of the four counts is a tick of 10 ms off at most
        resident, anonymous = memory_mb(family)
        assert 0 < anonymous < resident
        parent.communicate("\n")


def test_memory_that_a_process_fills_is_anonymous() -> None:
    code = "import sys; print(flush=True); input(); kept = bytearray(b'1') * (50 << 20); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        _, before = memory_mb([process.pid])
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        _, after = memory_mb([process.pid])
        assert 50 < after - before < 60
        process.communicate("\n")


def test_claims_compare_a_start_with_the_same_engines_node() -> None:
    pytest.importorskip("rclpy")
    from benchmarks.common.claim import Verdict
    from benchmarks.common.turns import Contest
    from benchmarks.start import __main__ as start

    rivals = {"pipeline_openvino": 3.0, "usual_openvino_fp32": 1.0, "usual_openvino_as_it_compiles": 0.5}
    quick = Contest("start", lambda turn: {})
    quick.figures = {f"{name} {figure}": [value] * 12 for name, value in rivals.items() for figure in start.TITLES}
    assert [claim.found.value for claim in start.claims(quick)] == [3.0] * 4
    full = Contest("start", lambda turn: {})
    rivals |= {"pipeline_onnxruntime": 3.0, "usual_onnxruntime": 2.0}
    rivals |= {"pipeline_first_start": 9.0, "backbone_and_head": 4.5}
    full.figures = {f"{name} {figure}": [value] * 12 for name, value in rivals.items() for figure in start.TITLES}
    *engines, first, first_s, two = start.claims(full)
    assert [claim.found.value for claim in engines] == [3.0] * 4 + [1.5] * 4
    assert (first.found.value, first_s.found.value, two.found.value) == (3.0, 9.0, 1.5)
    assert (first.verdict, first_s.verdict, two.verdict) == (Verdict.FAILS, Verdict.FAILS, Verdict.HOLDS)
    assert len({claim.name for claim in start.claims(full)}) == 11


def test_a_quick_run_starts_the_same_node_only_once() -> None:
    pytest.importorskip("rclpy")
    from benchmarks.start.turns import quick_rivals

    nodes = "usual_openvino_fp32", "usual_openvino_as_it_compiles"
    assert quick_rivals("bf16") == ("pipeline_openvino", "pipeline_first_start", *nodes)
    assert quick_rivals("fp32") == ("pipeline_openvino", "pipeline_first_start", "usual_openvino_fp32")
