"""The benchmark of the node tenants: its cells, its claims, its rows, and its command on made-up figures."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("rclpy")
pytest.importorskip("torch")
from benchmark_commands import reported

from benchmarks.common.claim import Verdict
from benchmarks.common.turns import Contest
from benchmarks.tenants import __main__ as bench
from benchmarks.tenants import cell as cells
from benchmarks.tenants.cell import DEFAULT, FP32, LARGE, MIDDLE, MODELS, PIPELINES, RIVALS, SMALL, TENANTS, USUAL, Cell
from benchmarks.tenants.reports import Reports
from benchmarks.tenants.tables import CellResult, claims_under, conclude, rows_of, smallest_share
from benchmarks.tenants.turns import AGE, HZ, LOADS, MEMORY, MODERATE, TOO_FAST, TenantsBench
from split_infer_ros.msg import DropCount, PipelineReport
from split_infer_ros.server.improving.improver import GOES_ON

TURNS = 12
FIGURES = {
    TENANTS: {HZ: 30.0, AGE: 0.1, MEMORY: 300.0},
    USUAL: {HZ: 24.0, AGE: 0.2, MEMORY: 250.0},
    PIPELINES: {HZ: 30.0, AGE: 0.2, MEMORY: 600.0},
}


def result(name: str = "2 cameras, 1 model", tenants: dict[str, float] | None = None) -> CellResult:
    """Returns a cell in which the tenants reach all goals, but for other figures of theirs in ``tenants``."""
    given = FIGURES | {TENANTS: FIGURES[TENANTS] | (tenants or {})}
    contests = {load: Contest(load, lambda turn: {}) for load in LOADS}
    for contest in contests.values():
        contest.figures = {f"{rival} {key}": [value] * TURNS for rival in RIVALS for key, value in given[rival].items()}
    ages = {load: {rival: [[[0.1, 0.2, 0.3], [0.4]]] * TURNS for rival in RIVALS} for load in LOADS}
    usage = {load: {rival: {"cpu_busy": 0.9, "peak_mb": 700.0} for rival in RIVALS} for load in LOADS}
    return CellResult(name, contests, ages, usage, [{"what": f"{name}, reports", "rival": TENANTS}])


def test_cameras_use_the_models_in_turn() -> None:
    cell = Cell(4, MODELS)
    assert cell.name == "4 cameras, 3 models"
    assert list(cell.model_of.values()) == [LARGE, SMALL, MIDDLE, LARGE]
    assert Cell(2, MODELS).name == "2 cameras, 2 models"
    assert Cell(8, [SMALL]).name == "8 cameras, 1 model"
    assert cells.topics(Cell(2, [SMALL]), USUAL, "image") == ["/usual/camera0/image", "/usual/camera1/image"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--quick"], [Cell(2, (SMALL,))]),
        ([], [Cell(count, models) for count in (2, 4, 8) for models in (MODELS[:1], MODELS)]),
        (["--cameras", "4", "--models", "3"], [Cell(4, MODELS)]),
    ],
)
def test_a_run_has_the_cells_that_were_asked_for(arguments: list[str], expected: list[Cell]) -> None:
    assert bench.cells(bench.parser().parse_args(arguments)) == expected


@pytest.mark.parametrize(("precision", "ours", "usual"), [(FP32, "fp32", "fp32"), (DEFAULT, "auto", "as_it_compiles")])
def test_all_rivals_run_in_the_same_precision(
    precision: str, ours: str, usual: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    class MadeObserver:
        def __enter__(self) -> Any:
            return SimpleNamespace(wait_for_subscriber=waited.append)

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr(cells, "Observer", MadeObserver)
    started: list[tuple[list[str], str, dict[str, Any]]] = []

    def start(command: list[str], namespace: str, **parameters: Any) -> int:
        started.append((list(command), namespace, parameters))
        return 100 + len(started)

    class Once:
        def __enter__(self) -> Any:
            return SimpleNamespace(start=start)

        def __exit__(self, *_: object) -> None:
            assert len(started) == 1

    monkeypatch.setattr(cells, "Processes", Once)
    paths = {name: Path(f"{name}.onnx") for name in MODELS}
    found = cells.start(Cell(2, MODELS), SimpleNamespace(start=start), paths, precision)  # type: ignore[arg-type]
    assert found == {TENANTS: [102], USUAL: [103, 104], PIPELINES: [105, 106]}
    comparing, (_, _, of_tenants), *usuals = started[:4]
    pipelines = started[4:]
    assert comparing[2] == of_tenants
    assert of_tenants["tenants"] == ["camera0", "camera1"]
    assert of_tenants["tenant.camera1.model"] == f"{SMALL}.onnx"
    assert [parameters["model"] for _, _, parameters in pipelines] == [f"{LARGE}.onnx", f"{SMALL}.onnx"]
    assert {parameters["precision"] for _, _, parameters in (comparing, started[1], *pipelines)} == {ours}
    assert all(command[-1] == usual for command, _, _ in usuals)
    assert waited == ["/comparing/camera0/image", "/comparing/camera1/image"]


def test_claims_have_the_goals_of_both_rivals() -> None:
    found = result()
    claims = [claim for load in LOADS for claim in claims_under(load, found.contests[load], found.name)]
    assert {claim.verdict for claim in claims} == {Verdict.HOLDS}
    assert [(round(claim.found.value, 3), claim.goal, claim.direction.value) for claim in claims] == [
        (1.25, 1.2, ">="),
        (0.5, 1.0, "<="),
        (1.0, 0.97, ">="),
        (0.5, 0.9, "<="),
        (0.5, 0.6, "<="),
        (0.5, 1.0, "<="),
        (0.5, 0.9, "<="),
    ]
    assert len({claim.name for claim in claims}) == len(claims)


@pytest.mark.parametrize(
    ("worse", "failing"),
    [
        ({HZ: 27.0}, [0, 2]),
        ({HZ: 28.9}, [2]),
        ({AGE: 0.19}, [3, 6]),
        ({AGE: 0.21}, [1, 3, 5, 6]),
        ({MEMORY: 361.0}, [4]),
    ],
)
def test_a_worse_figure_fails_its_claims(worse: dict[str, float], failing: list[int]) -> None:
    verdicts = [claim.verdict for claim in conclude([result(tenants=worse)]).claims]
    assert [index for index, verdict in enumerate(verdicts) if verdict is Verdict.FAILS] == failing


def test_rows_tell_late_results_and_the_camera_with_the_fewest() -> None:
    *rows, reports = rows_of(result())
    assert [(row["what"], row["rival"]) for row in rows] == [
        (f"2 cameras, 1 model, {load}", rival) for load in LOADS for rival in RIVALS
    ]
    assert reports == {"what": "2 cameras, 1 model, reports", "rival": TENANTS}
    row = rows[0]
    assert (row["frames_per_s"], row["age_p50_ms"], row["memory_mb"]) == (30.0, 100.0, 300.0)
    assert (row["smallest_share"], row["frames_of_cameras"]) == (0.5, [3 * TURNS, TURNS])
    assert 300 < row["age_p99_ms"] <= 400.0
    assert (row["cpu_busy"], "memory_mb" in rows[-1]) == (0.9, False)


def test_a_camera_without_results_has_no_share() -> None:
    assert smallest_share([[[0.1], []], [[0.1], []]]) == 0.0
    assert smallest_share([[[0.1], [0.1, 0.2]], [[0.1, 0.3], [0.1]]]) == 1.0


def test_the_command_reports_each_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "set_up_middleware", lambda: None)
    monkeypatch.setattr(bench, "draw_pictures", lambda folder: None)
    monkeypatch.setattr(bench, "export_models", lambda names, folder: dict.fromkeys(names, folder))
    shares: list[float] = []

    def measure(cell: Cell, chosen: argparse.Namespace, *_: object, share: float) -> CellResult:
        shares.append(share)
        return result(cell.name)

    monkeypatch.setattr(bench, "measure", measure)
    found = reported(bench.main, tmp_path, "--cameras", "2", "4", "--models", "1")
    assert shares == [0.5, 0.5]
    assert len(found["claims"]) == 14
    assert {row["what"].partition(", ")[0] for row in found["rows"]} == {"2 cameras", "4 cameras"}


class MadeObserver:
    """Keeps the callbacks of subscriptions, by topic."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    def subscribe(self, message: type, topic: str, receive: Any, raw: bool = False) -> None:
        self.callbacks[topic] = receive


def test_reports_add_up_what_all_processes_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.tenants.reports.REPORT_S", 0.0)
    observer = MadeObserver()
    reports = Reports(observer, Cell(2, [SMALL]))  # type: ignore[arg-type]
    for camera, received in (("camera0", 7), ("camera1", 4), ("camera1", 5)):
        dropped = [DropCount(reason="stale", count=received - 3)]
        report = PipelineReport(tenant=camera, engine="openvino", precision="fp32", received=received, dropped=dropped)
        observer.callbacks["/tenants/report"](report)
    assert not reports.goes_on(TENANTS)
    observer.callbacks["/pipelines/camera1/report"](PipelineReport(improvement=f"bf16: {GOES_ON}"))
    assert reports.goes_on(PIPELINES)
    tenants, pipelines = reports.rows("a cell")
    assert (tenants["what"], tenants["received"], tenants["dropped"]) == ("a cell, reports", 12, {"stale": 6})
    assert tenants["engines"] == ["openvino fp32"] * 2
    assert (pipelines["rival"], pipelines["received"]) == (PIPELINES, 0)


def test_rivals_get_the_same_images_and_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rates come from the fastest and the slowest rival, and delays only from the turn."""
    speeds = {TENANTS: 40.0, USUAL: 20.0, PIPELINES: 30.0}

    class MadeTogether:
        def __init__(self, arrivals: list[str]) -> None:
            self._rival = arrivals[0].split("/")[1]

        def settle(self, seconds: float) -> None:
            pass

        def during(self, seconds: float) -> Any:
            hz = speeds[self._rival]
            return SimpleNamespace(frames_hz=hz, all_ages=[1 / hz], ages=[[1 / hz], []])

        def wait_for_quiet(self, oldest_s: float) -> None:
            assert oldest_s == 1 / speeds[self._rival]

    sent: list[tuple[str, float, float]] = []

    class MadeFeed:
        def rate(self, topic: str, hz: float, delay_s: float = 0.0) -> None:
            if hz:
                sent.append((topic, hz, delay_s))

    monkeypatch.setattr("benchmarks.tenants.turns.Together", MadeTogether)
    monkeypatch.setattr("benchmarks.tenants.turns.Arrivals", lambda observer, topic: topic)
    monkeypatch.setattr("benchmarks.tenants.turns.memory_mb", lambda ids: float(len(ids)))
    processes = {TENANTS: [os.getpid()], USUAL: [os.getpid()] * 2, PIPELINES: [os.getpid()] * 2}
    made = TenantsBench(Cell(2, [SMALL]), object(), MadeFeed(), processes, turn_s=0.0)  # type: ignore[arg-type]
    searches = iter([True, True, False])
    made.run_while(PIPELINES, lambda: next(searches))
    assert [topic for topic, _, _ in sent] == cells.topics(Cell(2, [SMALL]), PIPELINES, "image") * 3
    made.warm_up()
    assert made.rates == {TOO_FAST: 60.0, MODERATE: 10.0}
    sent.clear()
    found = made.saturate(3)
    assert found[f"{TENANTS} {HZ}"] == 40.0
    assert found[f"{USUAL} {AGE}"] == 1 / 20
    assert found[f"{PIPELINES} {MEMORY}"] == 2.0
    assert made.ages[TOO_FAST][USUAL] == [[[1 / 20], []]]
    assert {hz for _, hz, _ in sent} == {30.0}
    delays = {rival: [delay for topic, _, delay in sent if topic.startswith(f"/{rival}/")] for rival in RIVALS}
    assert delays[TENANTS] == delays[USUAL] == delays[PIPELINES]
    assert 0 <= min(delays[TENANTS]) < max(delays[TENANTS]) < 1 / 30
