import json
import math

import pytest

from benchmarks.common.claim import Claim, Direction
from benchmarks.common.estimate import exact
from benchmarks.common.picture import Curve, Panel
from benchmarks.common.report import QUICK_S, Report, arguments, deliver, seconds_for_turns

MACHINE = {"cpu": "a processor", "instruction_set": "AVX2", "cores": 2, "gpu": None}


def claim(value: float, goal: float, direction: Direction = Direction.AT_LEAST) -> Claim:
    return Claim("speed", exact(value), "x", goal, direction)


def report(*claims: Claim) -> Report:
    panels: list[Panel | Curve] = [Panel("speed", "1/s", {"ours": [2000.0, 2100.0], "theirs": [1.0]})]
    panels.append(Curve("best so far", "s", "ms", {"ours": [(1.0, 9.0), (2.5, 4.0)], "theirs": [(1.0, 9.0)]}))
    return Report("some", claims, [{"rival": "ours", "frames_per_s": 2000.0}], panels, MACHINE)


def test_a_report_has_its_json_format():
    made = report(claim(2.5, 2.0), claim(1.0, 0.75, Direction.AT_MOST))
    assert made.as_json() == {
        "bench": "some",
        "machine": MACHINE,
        "claims": [claim(2.5, 2.0).as_json(), claim(1.0, 0.75, Direction.AT_MOST).as_json()],
        "rows": [{"rival": "ours", "frames_per_s": 2000.0}],
        "figures": [],
    }


def test_a_claim_that_does_not_hold_is_printed_as_such():
    made = report(claim(2.5, 2.0), claim(1.0, 0.75, Direction.AT_MOST))
    _, holds, fails = made.table().splitlines()
    assert "DOES NOT HOLD" in fails
    assert "DOES NOT HOLD" not in holds


def test_the_table_names_the_processor_and_its_instructions():
    assert report().table() == "some on a processor, AVX2, 2 cores, no GPU"


def test_a_report_is_delivered_in_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    given = ["--quick", "--json", str(tmp_path / "r.json"), f"--picture={tmp_path / 'r.png'}"]
    deliver(report(claim(math.nan, 2.0)), arguments("").parse_args(given), given)
    written = json.loads((tmp_path / "r.json").read_text())
    (told,) = written["claims"]
    assert written["arguments"] == ["--quick"]
    assert told["value"] is None
    assert told["verdict"] == "unclear"
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "speed" in capsys.readouterr().out


def test_without_files_it_is_only_printed(capsys):
    chosen = arguments("").parse_args([])
    deliver(report(claim(2.5, 2.0)), chosen)
    assert "holds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        (["--seconds", "7"], 7.0, 7.0),
        (["--quick", "--seconds", "7"], 7.0, 7.0),
        (["--quick"], 0.0, QUICK_S),
        ([], 600.0, 600.0),
    ],
)
def test_seconds_for_turns_follow_the_arguments(given, least, most):
    assert least <= seconds_for_turns(arguments("").parse_args(given), 600.0) <= most


def test_a_quick_runs_minute_begins_with_its_process(monkeypatch):
    monkeypatch.setattr("benchmarks.common.report.seconds_since_start", lambda: 15.0)
    assert seconds_for_turns(arguments("").parse_args(["--quick"]), 600.0) == QUICK_S - 15.0
