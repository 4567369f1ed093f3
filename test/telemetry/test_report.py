import json
import math

import pytest

from split_infer_ros.telemetry.report import AT_LEAST, AT_MOST, Claim, Curve, Panel, Report, arguments, deliver

MACHINE = {"cpu": "a processor", "instruction_set": "AVX2", "cores": 2, "gpu": None}


@pytest.mark.parametrize(
    ("value", "direction", "holds"),
    [
        (2.0, AT_LEAST, True),
        (1.99, AT_LEAST, False),
        (2.0, AT_MOST, True),
        (2.01, AT_MOST, False),
        (math.nan, AT_LEAST, False),
        (math.nan, AT_MOST, False),
    ],
)
def test_a_claim_holds_when_its_value_reaches_the_goal(value, direction, holds):
    assert Claim("speed", value, "x", 2.0, direction).holds is holds


def report(*claims: Claim) -> Report:
    panels: list[Panel | Curve] = [Panel("speed", "1/s", {"ours": [2000.0, 2100.0], "theirs": [1.0]})]
    panels.append(Curve("best so far", "s", "ms", {"ours": [(1.0, 9.0), (2.5, 4.0)], "theirs": [(1.0, 9.0)]}))
    return Report("some", claims, [{"rival": "ours", "frames_per_s": 2000.0}], panels, MACHINE)


def test_the_form_of_a_report():
    made = report(Claim("speed", 2.5, "x", 2.0), Claim("latency", 1.0, "x", 0.75, AT_MOST))
    assert made.as_json() == {
        "bench": "some",
        "machine": MACHINE,
        "claims": [
            {"name": "speed", "value": 2.5, "unit": "x", "goal": ">= 2", "holds": True},
            {"name": "latency", "value": 1.0, "unit": "x", "goal": "<= 0.75", "holds": False},
        ],
        "rows": [{"rival": "ours", "frames_per_s": 2000.0}],
    }


def test_a_claim_that_does_not_hold_is_printed_as_such():
    made = report(Claim("speed", 2.5, "x", 2.0), Claim("latency", 1.0, "x", 0.75, AT_MOST))
    _, holds, fails = made.table().splitlines()
    assert "DOES NOT HOLD" in fails
    assert "DOES NOT HOLD" not in holds


def test_the_table_names_the_processor_and_its_instructions():
    assert report().table() == "some on a processor, AVX2, 2 cores, no GPU"


def test_a_report_is_delivered_in_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    chosen = arguments("").parse_args(["--json", str(tmp_path / "r.json"), "--picture", str(tmp_path / "r.png")])
    deliver(report(Claim("speed", math.nan, "x", 2.0)), chosen)
    (claim,) = json.loads((tmp_path / "r.json").read_text())["claims"]
    assert claim["value"] is None
    assert not claim["holds"]
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    assert "speed" in capsys.readouterr().out


def test_without_files_it_is_only_printed(capsys):
    chosen = arguments("").parse_args([])
    deliver(report(Claim("speed", 2.5, "x", 2.0)), chosen)
    assert "holds" in capsys.readouterr().out
