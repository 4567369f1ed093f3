"""The benchmark of two processors: its bound, its claims, its rows, and its command."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("torch")
from benchmark_commands import reported
from made_timelines import batch

from benchmarks.common.claim import Verdict
from benchmarks.common.energy import NO_ENERGY
from benchmarks.common.turns import Contest
from benchmarks.two_processors import __main__ as bench
from benchmarks.two_processors.cell import (
    AS_BUILT,
    BOTH_CORES,
    OPTIMISED,
    PAPERS,
    PLANNERS,
    PREPARED,
    TWO_LANES,
    CellResult,
    figure_key,
)
from benchmarks.two_processors.claims import bound_gain, claims_of, part_of_bound, slow_down
from benchmarks.two_processors.tables import conclude, panels_of, rows_of
from split_infer_ros.engines.engine import Engine
from split_infer_ros.runtime.cores import Cores

SPEEDS = {AS_BUILT: 50.0, PREPARED: 100.0, OPTIMISED: 105.0, BOTH_CORES: 170.0, TWO_LANES: 200.0, PLANNERS: 180.0}


def result_of(
    size: int = 64,
    speeds: Mapping[str, float] = SPEEDS,
    *,
    load: int = 0,
    turns: int = 12,
    joules: float = 0.5,
) -> CellResult:
    """Returns a cell. Stages of the split take 0.5 and 0.4 units alone, and a tenth more while both run."""
    unit_s = size / 100  # the time of a batch in the prepared whole model
    times = {
        PLANNERS: {"backbone_s": 0.55, "head_s": 0.44, "backbone_alone_s": 0.5, "head_alone_s": 0.4, "batch_s": 1.2},
        PREPARED: {"backbone_s": 0.98, "head_s": 0.02, "backbone_alone_s": 0.98, "head_alone_s": 0.02, "batch_s": 1.0},
    }
    times[PAPERS], times[OPTIMISED] = times[PLANNERS], times[PREPARED]
    pipelines = [rival for rival in speeds if rival in times]
    figures: dict[str, list[float]] = {}
    for rival, speed in speeds.items():
        of_rival = {"images_per_s": speed, "latency_s": unit_s, "joules_per_image": joules}
        if rival in times:
            of_rival |= {name: value * unit_s for name, value in times[rival].items()}
            of_rival |= {"backbone_busy": 0.9, "head_busy": 0.8}
        figures |= {figure_key(rival, name): [value] * turns for name, value in of_rival.items()}
    return CellResult(
        model="vit_tiny",
        engine="torch",
        batch_size=size,
        competitors=load,
        split=PLANNERS,
        split_points={rival: "blocks.5" if rival == PLANNERS else "output" for rival in pipelines},
        predicted_images_per_s=190.0,
        agreement=dict.fromkeys(speeds, 1.0),
        figures=figures,
        turn_s=2.0,
        timed_images=1280,
        timelines={rival: [batch(5.0, 1.0, 0.5), batch(6.0, 1.0, 0.5)] for rival in pipelines},
    )


def test_the_bound_is_the_time_of_the_slower_stage() -> None:
    result = result_of()
    assert part_of_bound(result, PLANNERS) == pytest.approx([0.55 * 1.8] * 12)
    assert part_of_bound(result, PLANNERS, "alone_s") == pytest.approx([0.5 * 1.8] * 12)
    assert bound_gain(result, PLANNERS) == pytest.approx([1 / 0.55] * 12)
    assert slow_down(result, PLANNERS, "backbone") == pytest.approx([1.1] * 12)
    assert slow_down(result, PLANNERS, "head") == pytest.approx([1.1] * 12)


def test_claims_are_about_the_papers_batch_and_each_load() -> None:
    small = result_of(16, {**SPEEDS, PLANNERS: 150.0})
    slow = result_of(64, {OPTIMISED: 100.0, PLANNERS: 90.0}, load=3)
    found = {
        claim.name: (round(claim.found.value, 3), claim.verdict, claim.paper)
        for claim in claims_of([small, result_of(), result_of(128), slow])
    }
    cell = "vit_tiny, torch, batch 64"
    assert found == {
        f"{cell}: split, part of the bound of its stages": (0.99, Verdict.HOLDS, ""),
        f"{cell}: split, times {PREPARED}": (1.8, Verdict.HOLDS, "1.212x"),
        f"{cell}: split, times {AS_BUILT}": (3.6, Verdict.HOLDS, "1.212x"),
        f"{cell}: split, times {OPTIMISED}": (1.714, Verdict.HOLDS, ""),
        f"{cell}: split, times {BOTH_CORES}": (1.059, Verdict.HOLDS, ""),
        f"{cell}: split, times {TWO_LANES}": (0.9, Verdict.FAILS, ""),
        f"{cell}: time of a batch in the split, times {PREPARED}": (1.2, Verdict.FAILS, ""),
        f"{cell}: gain over {PREPARED}, times that at batch 16": (1.2, Verdict.HOLDS, ""),
        f"{cell}, head at 1/4: split, times {OPTIMISED}": (0.9, Verdict.FAILS, "1.212x"),
    }


def test_a_split_that_waits_misses_the_bound() -> None:
    waits = result_of(speeds={**SPEEDS, PLANNERS: 170.0})
    (claim,) = [each for each in claims_of([waits]) if "bound" in each.name]
    assert round(claim.found.value, 3) == 0.935
    assert claim.verdict is Verdict.FAILS


def test_without_the_papers_batch_the_largest_one_is_shown() -> None:
    whole = {rival: speed for rival, speed in SPEEDS.items() if rival != AS_BUILT}
    names = [claim.name for claim in claims_of([result_of(16, whole), result_of(32, whole)])]
    assert {name.partition(":")[0] for name in names} == {"vit_tiny, torch, batch 32"}
    assert not [name for name in names if AS_BUILT in name]


def test_rows_have_the_bound_and_the_slow_down_of_a_split() -> None:
    rows = {row["configuration"]: row for row in rows_of(result_of())}
    assert list(rows) == list(SPEEDS)
    assert "split_point" not in rows[TWO_LANES]
    split = rows[PLANNERS]
    assert (split["split_point"], split["predicted_images_per_s"]) == ("blocks.5", 190.0)
    shown = ("bound_of_gain", f"times {PREPARED}", "part_of_bound", "head_slow_down", "batch_ms")
    assert [round(split[name], 3) for name in shown] == [1.818, 1.8, 0.99, 1.1, 768.0]
    (slow, optimised) = rows_of(result_of(speeds={PLANNERS: 110.0, OPTIMISED: 100.0}, load=7))
    assert slow["what"] == "vit_tiny, torch, batch 64, head at 1/8"
    assert (round(slow[f"times {OPTIMISED}"], 3), f"times {OPTIMISED}" in optimised) == (1.1, False)


def test_the_picture_shows_the_processors_before_and_after(tmp_path: Path) -> None:
    results = [result_of(16), result_of(64), result_of(64, {OPTIMISED: 100.0, PLANNERS: 110.0}, load=3)]
    assert [panel.title for panel in panels_of(results)] == [
        "vit_tiny, torch, batch 64: images/s",
        f"before: {PREPARED}",
        f"after: {PLANNERS}",
        "vit_tiny, torch, batch 64, head at 1/4: images/s",
    ]
    assert conclude(results, {"what": "processors"}).rows[0] == {"what": "processors"}


@pytest.mark.parametrize(("size", "batches"), [(16, 4), (32, 2), (128, 2)])
def test_five_turns_have_the_images_that_they_should(size: int, batches: int) -> None:
    assert bench.num_batches(size, quick=False) == batches
    assert 5 * batches * size >= bench.MIN_IMAGES
    assert bench.num_batches(size, quick=True) == bench.MIN_BATCHES


class MadeCell:
    """Stands in for a cell."""

    def __init__(self, subject: object, engine: Engine, size: int, *, num_batches: int, competitors: int) -> None:
        self.contest = Contest("made up", lambda turn: {})
        self._size, self._load = size, competitors

    def result(self) -> CellResult:
        assert self.contest.turns == 4
        return result_of(self._size, load=self._load, turns=self.contest.turns)

    def close(self) -> None:
        pass


class MadeSubject:
    """Stands in for a model."""

    def __init__(self, name: str, *_: object) -> None:
        self.name = name

    def fastest_engine(self) -> tuple[Engine, dict[Engine, float]]:
        return Engine.OPENVINO, {Engine.OPENVINO: 12.0, Engine.ONNXRUNTIME: 10.0}


def test_the_command_measures_every_cell_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loads: list[int] = []

    @contextmanager
    def made_up(count: int, cores: Cores) -> Iterator[None]:
        loads.append(count)
        yield

    monkeypatch.setattr(bench, "Cell", MadeCell)
    monkeypatch.setattr(bench, "Subject", MadeSubject)
    monkeypatch.setattr(bench, "competitors", made_up)
    monkeypatch.setattr(bench, "as_head", lambda work: work())
    monkeypatch.setattr(bench, "prepare_process", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    arguments = ["--models", "vit_tiny", "--batch", "64", "16", "--engines", "best", "openvino", "--turns", "4"]
    found = reported(bench.main, tmp_path, *arguments)
    assert loads == [3, 7]
    cells = list(dict.fromkeys(row["what"] for row in found["rows"]))
    assert [cell.removeprefix("vit_tiny, torch, ") for cell in cells] == [
        "processors",
        "batch 16",
        "batch 64",
        "batch 64, head at 1/4",
        "batch 64, head at 1/8",
    ]
    assert found["rows"][0]["vit_tiny, best engine"] == "openvino (openvino 12 images/s, onnxruntime 10 images/s)"


@pytest.mark.parametrize("joules", [0.5, math.nan])
def test_rows_have_the_energy_of_an_image_or_say_why_not(joules: float) -> None:
    for row in rows_of(result_of(joules=joules)):
        assert row.get("joules_per_image", NO_ENERGY) == (NO_ENERGY if math.isnan(joules) else joules)
        assert row.get("energy") == (NO_ENERGY if math.isnan(joules) else None)
        assert row["turns"] == 12
