"""The benchmark of a search while frames flow: its claims, its picture, and its command on made-up figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
from benchmark_commands import reported

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.improve import __main__ as improve
from benchmarks.improve import search
from benchmarks.improve.search import BACKGROUND, BEFORE_START, NEVER, RIVALS

FIGURES = {"hz": 10.0, "p50": 0.1, "p99": 0.2, "end hz": 10.0, "end p50": 0.1}


def contest(**worse: float) -> Contest:
    """Returns a contest in which all rivals are alike. ``worse`` has other figures of ``background``."""
    found = Contest("made up", lambda turn: {})
    changes = {name.replace("_", " "): value for name, value in worse.items()}
    for rival in RIVALS:
        figures = FIGURES | (changes if rival == BACKGROUND else {})
        found.figures |= {f"{rival} {name}": [value] * 12 for name, value in figures.items()}
    return found


@pytest.mark.parametrize("load", improve.LOADS)
def test_a_search_that_nobody_notices_holds_all_claims(load: float) -> None:
    assert [claim.verdict for claim in improve.claims_of(load, contest())] == [Verdict.HOLDS] * 3


@pytest.mark.parametrize(
    ("load", "worse", "failing"),
    [
        (0.5, {"hz": 9.8}, 0),
        (0.5, {"p99": 0.27}, 1),
        (0.5, {"end_p50": 0.104}, 2),
        (1.5, {"hz": 9.4}, 0),
        (1.5, {"p99": 0.27}, 1),
        (1.5, {"end_hz": 9.6}, 2),
    ],
)
def test_what_a_search_costs_fails_its_own_claim(load: float, worse: dict[str, float], failing: int) -> None:
    verdicts = [claim.verdict for claim in improve.claims_of(load, contest(**worse))]
    assert [index for index, verdict in enumerate(verdicts) if verdict is Verdict.FAILS] == [failing]


def test_the_picture_shows_frames_and_turns_of_another_engine() -> None:
    class Observer:
        def subscribe(self, *_: Any, **__: Any) -> None:
            pass

    searches = search.Searches(Observer(), None, model=Path("m.onnx"), search_s=10.0, end_s=1.0)  # type: ignore[arg-type]
    engines = [(0.0, "onnxruntime"), (4.0, "openvino"), (6.0, "onnxruntime")]
    searches.seen[7.0] = [0.1, 0.2, 1.0, 6.0, 9.9], engines
    (curve,) = searches.curves({"load 0.5": 7.0, "load 1.5": 21.0})
    served, other = curve.points.values()
    assert served == [(0.0, 0.6), (5.0, 0.4)]
    assert other == [(0.0, 0.0), (4.0, 0.6), (6.0, 0.0)]


def test_the_command_reports_claims_rows_and_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contests = {load: contest() for load in improve.LOADS}
    monkeypatch.setattr(improve, "run", lambda chosen: improve.report_of(contests, []))
    found = reported(improve.main, tmp_path, "--quick")
    assert len(found["claims"]) == 6
    assert {row["rival"] for row in found["rows"]} == {BACKGROUND, NEVER, BEFORE_START}
