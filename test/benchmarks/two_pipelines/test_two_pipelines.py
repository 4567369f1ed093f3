"""The benchmark of two pipelines that share the cores: its claims, and its command on made-up figures."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("rclpy")
from benchmark_commands import reported

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.two_pipelines import __main__ as two_pipelines


def contest(**of_throughput: float) -> Contest:
    """Returns a contest in which all settings are alike. ``of_throughput`` has other figures of that objective."""
    found = Contest("two pipelines", lambda turn: {})
    for rival in two_pipelines.RIVALS:
        figures = {"hz": 10.0, "p50": 0.1, "p99": 0.2} | (of_throughput if rival == two_pipelines.THROUGHPUT else {})
        found.figures |= {f"{rival} {name}": [value] * 12 for name, value in figures.items()}
    return found


@pytest.mark.parametrize(("worse", "failing"), [({"p50": 0.13}, 0), ({"p99": 0.28}, 1), ({"hz": 9.6}, 2)])
def test_older_or_fewer_results_fail_a_claim(worse: dict[str, float], failing: int) -> None:
    verdicts = [claim.verdict for claim in two_pipelines.claims_of(contest(**worse))]
    assert verdicts.index(Verdict.FAILS) == failing
    assert verdicts.count(Verdict.HOLDS) == 2


def test_the_command_reports_each_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(two_pipelines, "run", lambda chosen: contest())
    found = reported(two_pipelines.main, tmp_path, "--quick")
    assert [row["rival"] for row in found["rows"]] == list(two_pipelines.RIVALS)
    assert len(found["claims"]) == 3
