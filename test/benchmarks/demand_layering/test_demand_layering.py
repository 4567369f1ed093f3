"""The benchmark of demand layering, on the smallest model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmark_commands import reported

from benchmarks.common.claim import Claim, Verdict
from benchmarks.common.turns import Contest
from benchmarks.demand_layering import __main__ as bench
from benchmarks.demand_layering import child, claims
from benchmarks.demand_layering import contest as contests
from benchmarks.demand_layering import turns as turning
from benchmarks.demand_layering.contest import WITH_READS, Effort, StreamingContest
from benchmarks.demand_layering.facts import facts_of, same
from benchmarks.demand_layering.on_gpu import Rows, StreamingContestOnGpu
from benchmarks.demand_layering.peak import measure_peak, measure_start
from benchmarks.demand_layering.plan import PlannedModel, auto_plan, plan_model, spread_trials
from benchmarks.demand_layering.turns import (
    READ_AFTER_B_S,
    READ_B_S,
    READ_BEFORE_B_S,
    READ_CORE_S,
    ResidencyTurns,
    pass_s,
    with_reads,
)
from split_infer_ros.models.catalogue import find_model
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.weightless_network import weightless_network
from split_infer_ros.weight_streaming.packed_header import PAGE
from split_infer_ros.weight_streaming.residency import plan_resident_and_two_buffers, plan_resident_blocks
from split_infer_ros.weight_streaming.ring_size import RingTrial
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

TURNS = 10
STREAMED = [name for name in bench.FULL.residencies if name not in (child.OFFLOADED, WITH_READS)]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> PlannedModel:
    return plan_model("shapes", tmp_path_factory.mktemp("packed") / "w")


@pytest.fixture(scope="module")
def contest(planned: PlannedModel) -> Iterator[StreamingContest]:
    effort = Effort((child.RESIDENT, child.TWO_STAGE, child.AUTO, WITH_READS), trials=3, measures_peak=False)
    with StreamingContest.open(planned, effort) as contest:
        contest.take_turns(0)
        yield contest


def facts(planned: PlannedModel) -> claims.ModelFacts:
    return facts_of(planned, {child.RESIDENT: planned.partition(child.RESIDENT)})


def contest_of(**figures: list[float]) -> Contest:
    turns = len(next(iter(figures.values())))
    return Contest("drawn", lambda number: {}, figures=dict(figures), turns=turns, spent_s=float(turns))


@pytest.mark.parametrize("residency", STREAMED)
def test_every_residency_gives_the_same_bits(planned: PlannedModel, residency: str) -> None:
    with torch.inference_mode():
        expected = planned.partition(child.RESIDENT)(planned.images)
        plan = child.AutoPlan(resident_blocks=0, capacity=2 << 20)
        partition = child.open_partition(
            SplitModel(weightless_network(find_model("shapes"))), planned.path, residency, plan
        )
        passes = [same(partition(planned.images), expected) for _ in range(3)]
        if isinstance(partition, StreamedPartition):
            partition.close()
    assert passes == [True] * 3


def test_each_turn_lies_between_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turning, "GROUP_S", 0.0)
    calls: list[str] = []

    class FakeDisk:
        def read(self) -> tuple[float, float]:
            calls.append("read")
            return float(len(calls)), 1.0

    partitions = {name: lambda images, name=name: calls.append(name) or [images] for name in ("one", "two")}
    turns = ResidencyTurns(partitions, passes_before={"one": 2, "two": 0}, images=torch.zeros(1), disk=FakeDisk())
    figures = turns.turn(0)
    assert calls == ["read", "one", "one", "one", "two", "read"]
    assert figures[READ_B_S] == (1 + 6) / 2, "the mean of what was read before and after"
    assert (figures[READ_BEFORE_B_S], figures[READ_AFTER_B_S]) == (1, 6)
    disk = {READ_B_S, READ_CORE_S, READ_BEFORE_B_S, READ_AFTER_B_S}
    assert turns.turn(1).keys() == {"one", "two", *disk}
    assert calls[6:] == ["read", "two", "one", "one", "one", "read"]
    assert turns.usage.row("one")["peak_mb"] > 0


def test_vain_reads_happen_in_each_pass() -> None:
    calls: list[str] = []
    with ThreadPoolExecutor(1) as executor:
        partition = with_reads(lambda images: calls.append("pass") or [images], lambda: calls.append("read"), executor)
        for _ in range(3):
            partition(torch.zeros(1))
    assert Counter(calls) == {"pass": 3, "read": 3}


def test_pass_is_the_median_of_a_group_without_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, times_s = SimpleNamespace(now=0.0), iter([5.0, 0.05, 0.03, 0.04, 0.09])
    clock.perf_counter = lambda: clock.now
    monkeypatch.setattr(turning, "time", clock)

    def partition(images: torch.Tensor) -> list[torch.Tensor]:
        clock.now += next(times_s)
        return [images]

    assert pass_s(partition, torch.zeros(1), 1) == pytest.approx(0.045)
    assert next(times_s, None) is None, "the group ended when it was long enough"


def test_predictions_use_the_bandwidth_of_their_turn(
    contest: StreamingContest, monkeypatch: pytest.MonkeyPatch
) -> None:
    delays = []
    for faster in (1e-3, 1e3):  # than just after the profile
        figures = {READ_BEFORE_B_S: 1.0, READ_B_S: faster}
        monkeypatch.setattr(turning.ResidencyTurns, "turn", lambda self, number, figures=figures: figures)
        with torch.inference_mode():
            delays.append(contest.delays.turn(0)[claims.prediction_of(child.TWO_STAGE)])
    assert delays[0] > 10 * delays[1] > 0


def test_prediction_error_is_relative_to_the_measurement() -> None:
    figures = {"ring": [4.0] * TURNS, claims.prediction_of("ring"): [5.0] * TURNS}
    assert claims.prediction_error(figures, "ring").value == pytest.approx(25)
    figures[claims.prediction_of("ring")] = [3.0] * TURNS
    assert claims.prediction_error(figures, "ring").value == pytest.approx(25), "too small counts as well"


def test_trials_of_the_trade_off_are_measured(contest: StreamingContest, planned: PlannedModel) -> None:
    trials = [f"{trial.memory_bytes / 1e6:.1f} MB" for trial in spread_trials(planned, 3)]
    rows = {row["way"]: row for row in contest.rows()}
    predicted = [name for name, row in rows.items() if "predicted_ms" in row]
    assert predicted == [child.TWO_STAGE, child.AUTO, *trials]
    assert all(rows[name]["delay_ms"] > 0 and rows[name]["predicted_ms"] > 0 for name in predicted)


def test_every_residency_has_a_row_with_its_usage(contest: StreamingContest) -> None:
    rows = {row["way"]: row for row in contest.rows()}
    assert rows.keys() >= {child.RESIDENT, child.TWO_STAGE, child.AUTO, WITH_READS}
    assert all(row["peak_mb"] > 0 and row["cpu_busy"] > 0 and len(row["samples_ms"]) == 1 for row in rows.values())
    assert rows[child.TWO_STAGE]["equal"]
    assert rows[child.TWO_STAGE]["memory_mb"] < rows[child.TWO_STAGE]["weights_mb"]


def test_one_turn_decides_no_sampled_claim(contest: StreamingContest) -> None:
    found = {claim.name: claim for claim in contest.claims()}
    assert found["shapes: ways that give the same bits"].verdict == Verdict.HOLDS
    assert found["shapes: two_stage holds, times the largest tile"].found.is_exact
    sampled = [claim for claim in found.values() if not claim.found.is_exact]
    names = [claim.name for claim in sampled]
    assert names == ["shapes: auto, of its bound", "shapes: predicted delay, off by at most"]
    assert {claim.verdict for claim in sampled} == {Verdict.UNCLEAR}


def test_the_command_reports_what_a_contest_found(
    contest: StreamingContest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    taken: list[float] = []
    found = SimpleNamespace(
        take_turns=taken.append, rows=contest.rows, claims=contest.claims, samples_ms=contest.samples_ms
    )
    monkeypatch.setattr(bench, "contest_of", lambda name, path, effort, device: nullcontext(found))
    monkeypatch.chdir(tmp_path)
    report = reported(bench.main, tmp_path, "--quick", "--models", "resnet50", "--seconds", "7", "--device", "cpu")
    assert taken == [7.0]
    assert [row["way"] for row in report["rows"]] == [row["way"] for row in contest.rows()]
    assert [claim["name"] for claim in report["claims"]] == [claim.name for claim in contest.claims()]


def test_bound_is_the_longer_of_reading_and_computing(planned: PlannedModel) -> None:
    counted = replace(facts(planned), streamed_bytes=1000, num_threads=2, read_bytes={child.AUTO: 500})
    figures = {child.RESIDENT: [4.0, 4.0], READ_B_S: [1000.0, 50.0], READ_CORE_S: [2.0, 2.0]}
    assert list(claims.delay_bounds(counted, child.AUTO, figures)) == [4.5, 10.0]


@pytest.mark.parametrize(("more_mb", "verdict"), [(-7.2, Verdict.UNCLEAR), (0.5, Verdict.HOLDS), (30.0, Verdict.FAILS)])
def test_impossible_memory_decides_nothing(planned: PlannedModel, more_mb: float, verdict: str) -> None:
    memory_bytes = dict.fromkeys((child.TWO_STAGE, child.ASYNCHRONOUS, child.AUTO), 5_000_000)
    counted = replace(facts(planned), memory_bytes=memory_bytes, max_block_bytes=1_000_000)
    peaks = [100e6 + 4e6 + more_mb * 1e6] * TURNS
    contest = contest_of(**dict.fromkeys(memory_bytes, peaks), **{child.NOTHING: [100e6] * TURNS})
    first, *_ = claims.outside_claims(counted, contest)
    assert first.found.value == pytest.approx(more_mb)
    assert first.verdict == verdict


@pytest.mark.slow
def test_peak_memory_is_measured_from_outside(planned: PlannedModel) -> None:
    assert measure_peak("shapes", planned.path, child.NOTHING, child.AutoPlan()) > 0


@pytest.mark.slow
def test_memory_of_a_start_is_measured_from_outside(planned: PlannedModel) -> None:
    start_bytes, steady_bytes = measure_start("shapes", planned.path)
    assert start_bytes > 0
    assert steady_bytes > 0


def test_start_that_holds_the_model_fails_its_claim(planned: PlannedModel) -> None:
    memory_bytes = dict.fromkeys((child.TWO_STAGE, child.ASYNCHRONOUS, child.AUTO), 5_000_000)
    counted = replace(facts(planned), memory_bytes=memory_bytes)
    peaks = dict.fromkeys((*memory_bytes, child.NOTHING, claims.STEADY), [100e6] * TURNS)
    for start, verdict in ((120e6, Verdict.HOLDS), (300e6, Verdict.FAILS)):
        contest = contest_of(**peaks, **{claims.START: [start] * TURNS})
        (claim,) = [each for each in claims.outside_claims(counted, contest) if "first result" in each.name]
        assert claim.verdict == verdict


def test_spread_of_the_disk_is_that_within_a_turn() -> None:
    figures = {READ_BEFORE_B_S: [90.0, 100.0, 100.0], READ_AFTER_B_S: [110.0, 100.0, 300.0]}
    assert claims.disk_spread(figures) == pytest.approx(0.2)


def test_first_turn_measures_the_peak_of_all_residencies(
    planned: PlannedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contests, "measure_peak", lambda name, path, residency, plan: 1)
    monkeypatch.setattr(contests, "measure_start", lambda name, path: (1, 1))
    residencies = child.RESIDENT, child.TWO_STAGE, child.AUTO, child.MAPPED
    with StreamingContest.open(planned, Effort(residencies, trials=0, measures_peak=True)) as contest:
        assert contest.peaks is not None
        measured = [set(contest.peaks.turn(number)) for number in (0, 1)]
    start = {claims.START, claims.STEADY}
    assert measured[0] == {child.NOTHING, *residencies, *start}
    assert measured[1] == {child.NOTHING, child.TWO_STAGE, child.AUTO, *start}


@pytest.mark.slow
def test_residencies_of_a_gpu_give_the_same_results(tmp_path: Path) -> None:
    """On a thread that computes alone, because other tests may leave the main thread so."""

    def measure() -> tuple[Rows, list[Claim], list[str]]:
        with StreamingContestOnGpu.open("shapes", tmp_path / "packed", torch.device("cpu")) as contest:
            contest.take_turns(0)
            return contest.rows(), contest.claims(), list(contest.samples_ms())

    rows, found, timed = run_with_threads(1, measure)
    assert [row["way"] for row in rows] == timed == ["resident", "uploaded", *bench.PIPELINES]
    assert all(row["same"] and row["delay_ms"] > 0 and row["cpu_busy"] > 0 for row in rows)
    assert found[0].verdict == Verdict.HOLDS
    assert [claim.verdict for claim in found[-2:]] == [Verdict.UNCLEAR] * 2, "one turn decides nothing"


def test_memory_of_auto_travels_to_a_process() -> None:
    """A ring, or two buffers in turns, with blocks that stay in memory."""
    sizes = [pages * PAGE for pages in (5, 1, 4, 7, 2, 9, 3, 5)]
    packed: Any = SimpleNamespace(block_sizes=sizes, step_blocks=list(range(len(sizes))))
    seen = set()
    for pages in range(9, sum(sizes) // PAGE):
        for make in (plan_resident_and_two_buffers, partial(plan_resident_blocks, capacity=9 * PAGE)):
            plan = make(sizes, packed.step_blocks, memory_bytes=pages * PAGE)
            if plan is not None:
                found = auto_plan(packed, RingTrial(pages * PAGE, 1.0, plan))
                seen.add(found.has_two_buffers)
                assert child.AutoPlan(*map(int, map(str, found))).memory_plan(packed) == plan
    assert seen == {0, 1}
