"""The content of a trace file, also if it was cut off."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.telemetry import trace as trace_module
from split_infer_ros.telemetry.trace import TraceFile


def test_slices_lie_in_named_rows_in_order_of_their_first_use(tmp_path: Path) -> None:
    trace = TraceFile.open(tmp_path / "t.json")
    trace.slice("backbone", "batch 1", 1.0, 1.5, frames=3)
    trace.slice("head", "batch 1", 1.5, 1.75)
    trace.slice("backbone", "batch 2", 1.5, 2.0)
    trace.close()
    events = json.loads((tmp_path / "t.json").read_text())
    rows = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert rows == {"backbone": 1, "head": 2}
    slices = [event for event in events if event["ph"] == "X"]
    assert [(event["tid"], event["ts"], event["dur"]) for event in slices] == [
        (1, 1e6, 5e5),
        (2, 1.5e6, 2.5e5),
        (1, 1.5e6, 5e5),
    ]
    assert slices[0]["args"] == {"frames": 3}
    assert slices[0]["name"] == "batch 1"


def test_an_open_trace_lacks_only_the_bracket(tmp_path: Path) -> None:
    trace = TraceFile.open(tmp_path / "t.json")
    trace.slice("head", "batch 1", 0.0, 1.0)
    text = (tmp_path / "t.json").read_text()
    assert json.loads(text.rstrip(",\n") + "]")[-1]["name"] == "batch 1"


def test_threads_do_not_mix_their_lines(tmp_path: Path) -> None:
    trace = TraceFile.open(tmp_path / "t.json")

    def write(row: str) -> None:
        for number in range(200):
            trace.slice(row, str(number), 0.0, 1.0)

    threads = [threading.Thread(target=write, args=(row,)) for row in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    trace.close()
    trace.slice("a", "late", 0.0, 1.0)
    events = json.loads((tmp_path / "t.json").read_text())
    assert sum(event["ph"] == "X" for event in events) == 600


def test_a_trace_ends_at_its_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_module, "MAX_BYTES", 1000)
    trace = TraceFile.open(tmp_path / "t.json")
    for number in range(100):
        trace.slice("a", str(number), 0.0, 1.0)
    trace.close()
    assert (tmp_path / "t.json").stat().st_size < 1300
    json.loads((tmp_path / "t.json").read_text())


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"trace '{tmp_path}/no/t.json' cannot be written"):
        TraceFile.open(tmp_path / "no" / "t.json")


def test_a_full_disk_ends_the_trace_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    full = Path("/dev/full")
    with pytest.raises(ConfigurationError, match="'/dev/full' cannot be written: No space left"):
        TraceFile.open(full)
    trace = TraceFile.open(tmp_path / "t.json")
    monkeypatch.setattr(trace, "_file", full.open("w", buffering=1))  # as a disk that fills up
    for _ in range(3):
        trace.slice("head", "batch", 0.0, 1.0)
    trace.close()
    assert [each.getMessage() for each in caplog.records] == ["trace '/dev/full' ends here: No space left on device."]
