from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from split_infer_ros.cli.calibrate import describe
from split_infer_ros.measurements.database import Database
from split_infer_ros.memory_cost import calibration
from split_infer_ros.memory_cost.calibration import Calibration
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS
from split_infer_ros.memory_cost.machine import calibrate_machine


def test_constants_are_printed_and_kept(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(calibration, "ROUNDS", calibration.GROUPS)
    monkeypatch.setattr(calibration, "MAX_SPREAD", math.inf)  # whatever else this machine is doing
    database = tmp_path / "tuning.jsonl"
    arguments = "--device", "cpu", "--database", str(database)
    assert run("calibrate", *arguments) == 0
    first = capsys.readouterr()
    assert first.err == "The memory of cpu is timed, which takes some seconds.\n"
    title, *lines = first.out.splitlines()
    assert title.startswith("Memory of ")
    absent = [line for line in lines if line.endswith("absent here")]
    assert len(lines) == len(ALL_CONSTANTS)
    assert len(absent) == 6  # a CPU maps and flushes nothing, and has one way to its memory
    stored = calibrate_machine(torch.device("cpu"), Database(database))
    # On a busy machine, the line through the copies may start below 0. Then the start of a copy has no finite spread.
    assert {name for name, spread in stored.spreads.items() if not math.isfinite(spread)} <= {"copy_start_ms"}
    for line, row in zip(lines, ALL_CONSTANTS, strict=True):
        if line not in absent:
            assert " ms" in line
            assert ("spread" in line) == math.isfinite(stored.spreads[row.name])
    assert run("calibrate", *arguments) == 0
    again = capsys.readouterr()
    assert (again.out, again.err) == (first.out, "")
    assert run("calibrate", *arguments, "--anew") == 0
    assert capsys.readouterr().err == first.err


def test_constants_are_printed_even_if_they_cannot_be_stored(
    run: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(calibration, "ROUNDS", 1)
    monkeypatch.setattr(calibration, "REPEATS", 0)
    assert run("calibrate", "--device", "cpu", "--database", str(tmp_path)) == 0  # a folder
    assert "the constants are not kept" in caplog.text
    assert "uncertain, not used" in capsys.readouterr().out  # one round proves nothing


def test_errors_are_printed_as_sentences(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("calibrate", "--device", "abacus") == 1
    assert "device 'abacus' is not on this machine" in capsys.readouterr().err


def test_each_constant_is_told_in_its_unit() -> None:
    found = Calibration(
        {"to_host_ms_per_byte": 1e-7, "copy_start_ms": 0.0123, "gpu_flush_ms": math.inf, "cpu_flush_ms": 0.5},
        {"to_host_ms_per_byte": 0.023, "copy_start_ms": 0.3, "gpu_flush_ms": 0.0, "cpu_flush_ms": math.inf},
        {},
    )
    lines = {line.split()[0]: line.rpartition("  ")[2].strip() for line in describe(found)}
    assert lines["l_dh"] == "0.1 ms/MB (spread 2 %)"
    assert lines["Tr_ini"] == "0.0123 ms (spread 30 %): uncertain, not used"
    assert lines["Ca_gpu"].endswith("no bound (spread 0 %)")
    assert lines["Ca_cpu"].endswith("0.5 ms: uncertain, not used")
    assert lines["l_hd"] == "absent here"
