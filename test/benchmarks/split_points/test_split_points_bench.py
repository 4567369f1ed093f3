"""The benchmark of automatic split points: which fixed choices it runs, its claims, and its command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("torch")
from benchmark_commands import reported

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.split_points import __main__ as split_points
from benchmarks.split_points.__main__ import LATENCY, THROUGHPUT, Cell
from benchmarks.split_points.choices import AGE, HZ, Choice, Choices, Seconds

CHOSEN, RIGHT, LUCKY = Choice("neck", 1), Choice("input", 4), Choice("output", 1)
SECONDS = Seconds(search=0.0, settle=0.0, turn=0.0)


def contest(chosen_hz: float, chosen_age_s: float) -> Contest:
    found = Contest("made up", lambda turn: {})
    of_all = {CHOSEN: (chosen_hz, chosen_age_s), RIGHT: (20.0, 0.05), LUCKY: (10.0, 0.1)}
    for choice, (hz, age_s) in of_all.items():
        found.figures |= {f"{choice} {HZ}": [hz] * 12, f"{choice} {AGE}": [age_s] * 12}
    return found


class Made(Choices):
    """Choices whose frames a second are made up: those of ``of``, and otherwise 1 a second."""

    def __init__(self, of: dict[Choice, float], names: Sequence[str]) -> None:
        class Observer:
            def subscribe(self, *_: Any, **__: Any) -> None:
                pass

            def set(self, node: str, split_point: str, batch_size: int, batch_timeout_ms: float) -> None:
                assert node == "/pipeline/backbone"
                made.ran.append(Choice(split_point, batch_size))

        made = self
        super().__init__(Observer(), None, "torch", SECONDS)  # type: ignore[arg-type]
        self._of, self._names = of, list(names)
        self.ran: list[Choice] = []

    def measure(self) -> dict[str, float]:
        return {HZ: self._of.get(self.ran[-1], 1.0), AGE: 1.0}


@pytest.mark.parametrize(
    ("objective", "hz", "age_s", "verdict"),
    [
        (THROUGHPUT, 19.6, 9.9, Verdict.HOLDS),
        (THROUGHPUT, 19.2, 0.01, Verdict.FAILS),
        (LATENCY, 1.0, 0.051, Verdict.HOLDS),
        (LATENCY, 99.0, 0.052, Verdict.FAILS),
    ],
)
def test_the_best_of_the_last_turns_is_the_rival(objective: str, hz: float, age_s: float, verdict: Verdict) -> None:
    cell = Cell("m", objective, CHOSEN, contest(hz, age_s))
    assert cell.best == str(RIGHT)
    assert split_points.claim_of(cell).verdict is verdict


def test_the_best_split_points_run_with_larger_batches_and_the_best_of_all_meet_the_chosen_one() -> None:
    names = ["input", *map(str, range(5)), "neck", "output"]
    of = {Choice("neck", 1): 9.0, Choice("output", 1): 8.0, Choice("input", 1): 7.0, Choice("input", 4): 12.0}
    made = Made(of, names)
    finalists = made.finalists(CHOSEN, lambda figures: figures[HZ])
    assert made.ran[:8] == [Choice(name, 1) for name in names]
    grown = made.ran[8:]
    assert [choice.batch_size for choice in grown] == [2, 4, 8] * 4
    assert [choice.split_point for choice in grown[::3]][:3] == ["neck", "output", "input"]
    assert finalists == [CHOSEN, RIGHT, LUCKY, Choice("input", 1)]
    figures = made.turn(finalists, 1)
    assert made.ran[-4:] == [RIGHT, LUCKY, Choice("input", 1), CHOSEN]
    assert figures[f"{RIGHT} {HZ}"] == 12.0


def test_the_command_reports_claims_rows_and_pictures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = split_points.report_of(
        [Cell("m", objective, CHOSEN, contest(20.0, 0.05)) for objective in (LATENCY, THROUGHPUT)]
    )

    def main() -> int:
        split_points.deliver(report, split_points.arguments("").parse_args())
        return 0

    found = reported(main, tmp_path, "--quick")
    assert [claim["verdict"] for claim in found["claims"]] == ["holds", "holds"]
    assert {(row["chosen"], row["best_fixed"]) for row in found["rows"]} == {(str(CHOSEN), str(RIGHT))}
