"""The benchmark's ways, on the smallest model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import _layering_child as child
import _layering_claims as claims
import _layering_contest
import _layering_turns
import demand_layering as bench
import pytest
import torch
from _hollow_model import hollow_model
from _layering_contest import BESIDE, Effort, Layered, same
from _layering_on_gpu import LayeredOnGpu
from _layering_peak import peak
from _layering_plan import Planned, plan, spread
from _layering_turns import READ_B_S, READ_CORE_S, Residencies, beside, pass_s

from split_infer_ros.telemetry.claim import Verdict
from split_infer_ros.telemetry.turns import Contest
from split_infer_ros.weight_streaming.residency import ASYNCHRONOUS, RESIDENT, TWO_STAGE
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

TURNS = 10
STREAMED = [way for way in bench.FULL.ways if way not in (child.OFFLOADED, BESIDE)]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return plan("shapes", tmp_path_factory.mktemp("packed") / "w")


@pytest.fixture(scope="module")
def layered(planned: Planned) -> Iterator[Layered]:
    with Layered(planned, Effort((RESIDENT, TWO_STAGE, child.CHOSEN, BESIDE), 3, looks=False)) as found:
        found.take_turns(0)
        yield found


def facts(planned: Planned) -> claims.Facts:
    return _layering_contest.facts_of(planned, {RESIDENT: planned.partition(RESIDENT)})


def contest_of(**figures: list[float]) -> Contest:
    turns = len(next(iter(figures.values())))
    return Contest("drawn", lambda number: {}, figures=dict(figures), turns=turns, spent_s=float(turns))


@pytest.mark.parametrize("way", STREAMED)
def test_every_way_gives_the_same_bits(planned: Planned, way: str) -> None:
    with torch.inference_mode():
        expected = planned.partition(RESIDENT)(planned.images)
        half = child.make(hollow_model("shapes"), planned.path, way, (0, 2 << 20))
        passes = [same(half(planned.images), expected) for _ in range(3)]
        if isinstance(half, StreamedPartition):
            half.close()
    assert passes == [True] * 3


def test_each_way_has_its_passes_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layering_turns, "GROUP_S", 0.0)
    calls: list[str] = []

    class Drawn:
        def read(self) -> tuple[float, float]:
            calls.append("read")
            return float(len(calls)), 1.0

    partitions = {way: lambda images, way=way: calls.append(way) or [images] for way in ("one", "two")}
    ways = Residencies(partitions, {"one": 2, "two": 0}, torch.zeros(1), Drawn())
    found = ways.turn(0)
    assert calls == ["read", "one", "one", "one", "two", "read"]
    assert found[READ_B_S] == (1 + 6) / 2, "the mean of what was read before and after"
    assert ways.turn(1).keys() == {"one", "two", READ_B_S, READ_CORE_S}
    assert calls[6:] == ["read", "two", "one", "one", "one", "read"]
    assert ways.usage.row("one")["peak_mb"] > 0


def test_what_reads_in_vain_does_so_in_each_pass() -> None:
    calls: list[str] = []
    with ThreadPoolExecutor(1) as executor:
        half = beside(lambda images: calls.append("pass") or [images], lambda: calls.append("read"), executor)
        for _ in range(3):
            half(torch.zeros(1))
    assert Counter(calls) == {"pass": 3, "read": 3}


def test_pass_is_the_median_of_a_group_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, takes = SimpleNamespace(now=0.0), iter([5.0, 0.05, 0.03, 0.04, 0.09])
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(_layering_turns, "time", clock)

    def half(images: torch.Tensor) -> list[torch.Tensor]:
        clock.now += next(takes)
        return [images]

    assert pass_s(half, torch.zeros(1), 1) == pytest.approx(0.045)
    assert next(takes, None) is None, "the group lasted until it was long enough"


def test_predictions_are_for_the_bandwidth_of_each_turn(layered: Layered, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for bandwidth in (1e6, 1e12):
        monkeypatch.setattr(_layering_contest.Disk, "read", lambda disk, bandwidth=bandwidth: (bandwidth, 0.0))
        with torch.inference_mode():
            found.append(layered.ways.turn(0)[claims.predicted(TWO_STAGE)])
    assert found[0] > 10 * found[1] > 0


def test_error_of_a_prediction_is_in_parts_of_what_was_measured() -> None:
    figures = {"way": [4.0] * TURNS, claims.predicted("way"): [5.0] * TURNS}
    assert claims.error(figures, "way").value == pytest.approx(25)
    figures[claims.predicted("way")] = [3.0] * TURNS
    assert claims.error(figures, "way").value == pytest.approx(25), "too small counts as well"


def test_points_of_the_trade_off_are_measured_as_well(layered: Layered, planned: Planned) -> None:
    further = [f"{point.memory / 1e6:.1f} MB" for point in spread(planned, 3)]
    rows = {row["way"]: row for row in layered.rows()}
    predicted = [way for way, row in rows.items() if "predicted_ms" in row]
    assert predicted == [TWO_STAGE, child.CHOSEN, *further]
    assert all(rows[way]["delay_ms"] > 0 and rows[way]["predicted_ms"] > 0 for way in predicted)


def test_every_way_has_a_row_with_what_it_took(layered: Layered) -> None:
    rows = {row["way"]: row for row in layered.rows()}
    assert rows.keys() >= {RESIDENT, TWO_STAGE, child.CHOSEN, BESIDE}
    assert all(row["peak_mb"] > 0 and row["cpu_busy"] > 0 and len(row["samples_ms"]) == 1 for row in rows.values())
    assert rows[TWO_STAGE]["equal"]
    assert rows[TWO_STAGE]["memory_mb"] < rows[TWO_STAGE]["weights_mb"]


def test_one_turn_decides_nothing_that_was_sampled(layered: Layered) -> None:
    found = {claim.name: claim for claim in layered.claims()}
    assert found["shapes: ways that give the same bits"].verdict == Verdict.HOLDS
    assert found["shapes: two_stage holds, times the largest tile"].found.is_exact
    sampled = [claim for claim in found.values() if not claim.found.is_exact]
    names = [claim.name for claim in sampled]
    assert names == ["shapes: auto, of its bound", "shapes: predicted delay, off by at most"]
    assert {claim.verdict for claim in sampled} == {Verdict.UNCLEAR}


def test_bound_is_the_longer_of_reading_and_computing(planned: Planned) -> None:
    known = facts(planned)
    known = replace(known, streamed=1000, threads=2, reads={child.CHOSEN: 500})
    figures = {RESIDENT: [4.0, 4.0], READ_B_S: [1000.0, 50.0], READ_CORE_S: [2.0, 2.0]}
    assert list(claims.bounds(known, child.CHOSEN, figures)) == [4.5, 10.0]


@pytest.mark.parametrize(("more_mb", "verdict"), [(-7.2, Verdict.UNCLEAR), (0.5, Verdict.HOLDS), (30.0, Verdict.FAILS)])
def test_memory_that_cannot_be_decides_nothing(planned: Planned, more_mb: float, verdict: str) -> None:
    memory = dict.fromkeys((TWO_STAGE, ASYNCHRONOUS, child.CHOSEN), 5_000_000)
    known = replace(facts(planned), memory=memory, largest_block=1_000_000)
    seen = [100e6 + 4e6 + more_mb * 1e6] * TURNS
    contest = contest_of(**dict.fromkeys(memory, seen), **{child.NOTHING: [100e6] * TURNS})
    first, *_ = claims.claims_seen(known, contest)
    assert first.found.value == pytest.approx(more_mb)
    assert first.verdict == verdict


def test_memory_is_seen_from_outside(planned: Planned) -> None:
    assert peak("shapes", planned.path, child.NOTHING, (0, 0)) > 0


def test_all_ways_are_looked_at_once(planned: Planned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_layering_contest, "peak", lambda name, path, way, where: 1)
    with Layered(planned, Effort((RESIDENT, TWO_STAGE, child.CHOSEN, child.MAPPED), 0, looks=True)) as found:
        assert found.seen is not None
        looked = [set(found.seen.turn(number)) for number in (0, 1)]
    assert looked[0] == {child.NOTHING, RESIDENT, TWO_STAGE, child.CHOSEN, child.MAPPED}
    assert looked[1] == {child.NOTHING, TWO_STAGE, child.CHOSEN}


def test_the_ways_of_a_gpu_give_the_same(tmp_path: Path) -> None:
    with LayeredOnGpu("shapes", tmp_path / "packed", torch.device("cpu")) as layered:
        layered.take_turns(0)
        rows, found = layered.rows(), layered.claims()
    assert [row["way"] for row in rows] == list(layered.samples_ms()) == ["resident", "uploaded", *bench.PIPELINES[:3]]
    assert all(row["same"] and row["delay_ms"] > 0 and row["cpu_busy"] > 0 for row in rows)
    assert found[0].verdict == Verdict.HOLDS
    assert [claim.verdict for claim in found[-2:]] == [Verdict.UNCLEAR] * 2, "one turn decides nothing"
