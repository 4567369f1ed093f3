"""Are constants found again, are policies run and predicted, and do hand-overs work in a process and across two?"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from assumed_boards import AGX
from benchmark_commands import reported

from benchmarks.common.claim import Verdict
from benchmarks.common.report import Report
from benchmarks.common.turns import take_turns
from benchmarks.memory_policies import __main__ as bench
from benchmarks.memory_policies import ring_contests, ring_cost
from benchmarks.memory_policies.claims import MIN_ERROR, PolicyContest
from benchmarks.memory_policies.runs import EXECUTION, Case, PolicyRuns, figure, task_of
from split_infer_ros.buffers.memory import Memory
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.memory_cost.constants import ALL_CONSTANTS, MachineConstants
from split_infer_ros.memory_cost.overhead import overhead

CPU = torch.device("cpu")
UNKNOWN = MachineConstants(*[math.nan] * len(ALL_CONSTANTS))


def test_constants_of_simulated_machines_are_recovered() -> None:
    rows, (off, certain) = bench.recover(10)
    assert len(rows) == 10 * len(ALL_CONSTANTS)
    assert off.found.value == pytest.approx(100 * max(row["error"] for row in rows))
    assert off.found.is_exact
    assert off.verdict == certain.verdict == Verdict.HOLDS
    assert certain.found.value == 1
    assert certain.found.turns == 10  # of machines
    assert all("simulated machines" in claim.name for claim in (off, certain))


def two_sided(policy: Policy, nbytes: int, device: torch.device) -> Memory:
    """Memory of this CPU in the place of a GPU's: with policy device, on two sides."""
    host = torch.zeros(nbytes, dtype=torch.uint8)
    return Memory(policy, host, torch.zeros_like(host) if policy is Policy.DEVICE else host)


@pytest.mark.parametrize(("rereads", "kernels"), [(0, 1), (2, 1), (0, 3)])
def test_tasks_under_each_policy_are_measured_and_predicted(rereads: int, kernels: int) -> None:
    sizes = (1 << 18, 1 << 20)
    case = Case("case", sizes, rereads, kernels)
    runs = PolicyRuns(CPU, [case], AGX, POLICIES, two_sided)
    contest = PolicyContest(runs)
    contest.contest.take()
    rows = contest.rows()
    assert [(row["bytes"], row["policy"]) for row in rows] == [(n, p.value) for n in sizes for p in POLICIES]
    for row in rows:
        policy = Policy(row["policy"])
        assert row["footprint_bytes"] == row["bytes"] * (2 if policy is Policy.DEVICE else 1)
        assert row["ms"] > 0
        assert row["peak_mb"] > 0
        predicted = overhead(task_of(row["bytes"], case), policy, AGX).total_ms
        (execution_s,) = contest.contest.figures[figure(runs.cases[0], row["bytes"], EXECUTION)]
        assert row["predicted_ms"] == pytest.approx(1e3 * execution_s + predicted)
        assert row["error"] == pytest.approx(abs(row["predicted_ms"] / row["ms"] - 1))
    memory = two_sided(Policy.DEVICE, 1 << 18, CPU)
    runs.run(memory, case)
    assert (memory.host.view(torch.float32) == kernels).all()  # there, changed by each kernel, and back


def policy_contest(times: Mapping[str, float], constants: MachineConstants = AGX) -> PolicyContest:
    """Ten turns that took so many seconds at each of two sizes."""
    runs = PolicyRuns(CPU, [Case("case", (1 << 18, 1 << 19), 0)], constants, POLICIES, two_sided)
    contest = PolicyContest(runs)
    for nbytes in runs.cases[0].sizes:
        for name, seconds in times.items():
            contest.contest.figures[figure(runs.cases[0], nbytes, name)] = [seconds] * 10
    return contest


def test_what_is_claimed_of_policies() -> None:
    times = {EXECUTION: 1e-3, **{policy.value: 1e-3 * (4 + place) for place, policy in enumerate(POLICIES)}}
    contest = policy_contest(times)
    mean, worst, loss = contest.claims()
    rows = contest.rows()
    errors = [
        math.sqrt(math.prod(row["error"] for row in rows if row["policy"] == policy.value)) for policy in POLICIES
    ]
    assert mean.found.value == pytest.approx(100 * math.prod(errors) ** (1 / 3))
    assert worst.found.value == pytest.approx(100 * max(errors))
    chosen = {row["auto"] for row in rows}
    slowest = max(times[name] for name in chosen)
    assert loss.found.value == pytest.approx(100 * (slowest / 4e-3 - 1))
    assert (mean.paper, worst.paper) == ("9.3 %", "24.3 %")
    assert contest.panels()[0].samples[Policy.DEVICE.value] == [4.0] * 10


def test_an_exact_prediction_has_the_least_error() -> None:
    runs = PolicyRuns(CPU, [Case("case", (1 << 18,), 0)], AGX, POLICIES, two_sided)
    contest = PolicyContest(runs)
    (case,) = runs.cases
    contest.contest.figures[figure(case, 1 << 18, EXECUTION)] = [1e-3] * 10
    for policy in POLICIES:
        taken = 1e-3 + runs.choices["case", 1 << 18].overheads[policy].total_ms / 1e3
        contest.contest.figures[figure(case, 1 << 18, policy.value)] = [taken] * 10
    mean, worst, loss = contest.claims()
    assert mean.found.value == pytest.approx(100 * MIN_ERROR)
    assert worst.verdict == Verdict.HOLDS
    assert loss.found.value == pytest.approx(0.0)


def test_a_policy_that_cannot_be_predicted_shows_nothing() -> None:
    times = {EXECUTION: 1e-3, **{policy.value: 2e-3 for policy in POLICIES}}
    mean, worst, loss = policy_contest(times, UNKNOWN).claims()
    assert mean.verdict == worst.verdict == Verdict.UNCLEAR
    assert loss.verdict == Verdict.HOLDS  # all policies took the same time


@pytest.mark.slow
def test_hand_overs_are_timed_in_a_process_and_across_two() -> None:
    sizes = (8192, 100_000)
    inside = ring_contests.in_process(sizes)
    with ring_contests.across_processes(sizes) as across:
        take_turns([each.contest for each in (*inside, *across)], 0.0)
        rows = [row for each in (*inside, *across) for row in each.rows()]
    claims = ring_contests.ring_claims(inside) + ring_contests.ring_claims(across)
    assert [claim.goal for claim in claims] == [2, 2, 10]
    assert {claim.verdict for claim in claims} == {Verdict.UNCLEAR}  # of one turn
    rivals = {
        ring_cost.RING, ring_cost.ALONE, ring_cost.FRESH, ring_cost.REUSED, ring_cost.PROCESS_QUEUE
    }  # fmt: skip
    assert {row["rival"] for row in rows} == rivals
    assert all(row["us"] > 0 and row["peak_mb"] > 0 for row in rows)
    assert {row["what"] for row in rows if "consumer_peak_mb" in row} == {"hand-over across processes"}
    assert set(inside[0].panel().samples) == rivals - {ring_cost.PROCESS_QUEUE}


def test_the_size_where_the_ring_gains_least_decides() -> None:
    rivals = {ring_cost.RING: int, ring_cost.FRESH: int}
    small, large = (ring_contests.HandOvers("in process", size, rivals) for size in (10, 20))
    for contest, queue_s in ((small, 3.0), (large, 1.5)):
        names = {ring_cost.RING: 1.0, ring_cost.FRESH: queue_s}
        contest.contest.figures.update({name: [seconds] * 10 for name, seconds in names.items()})
    (claim,) = ring_contests.ring_claims([small, large])
    assert claim.found.value == 1.5
    assert claim.verdict == Verdict.FAILS


def calibrated(monkeypatch: pytest.MonkeyPatch, again: bool) -> bench.CalibrationContest:
    found = bench.calibrate(bench.draw_machine(0), tuple(bench.Probe))
    monkeypatch.setattr(bench, "calibrate_machine", lambda *args, **options: found)
    return bench.CalibrationContest(CPU, 1.0, again)


def test_one_calibration_is_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    once = calibrated(monkeypatch, again=False)
    assert once.claims() == []
    first, *constants = once.rows()
    assert (first["what"], first["turns"]) == ("calibration", 1)
    assert len(constants) == len(ALL_CONSTANTS)


def test_ten_calibrations_are_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    many = calibrated(monkeypatch, again=True)
    for _ in range(10):
        many.contests[0].take()
    (claim,) = many.claims()
    assert claim.found.turns == 10
    assert claim.verdict == Verdict.HOLDS


def test_the_command_reports_made_up_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(chosen: argparse.Namespace) -> Report:
        assert chosen.quick
        rows, claims = bench.recover(10)
        return Report("memory_policies", claims, rows)

    monkeypatch.setattr(bench, "run", run)
    found = reported(bench.main, tmp_path, "--quick")
    assert [claim["verdict"] for claim in found["claims"]] == ["holds", "holds"]
    assert len(found["rows"]) == 10 * len(ALL_CONSTANTS)


@pytest.mark.slow
def test_a_short_run_on_a_cpu_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SIZES", (8192,))
    monkeypatch.setattr(bench, "SIMULATED_MACHINES", 10)
    found = bench.calibrate(bench.draw_machine(0), tuple(bench.Probe))
    monkeypatch.setattr(bench, "calibrate_machine", lambda *args, **options: found)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    report = bench.run(argparse.Namespace(quick=True, seconds=0.0))
    assert [claim.name.split(",")[0] for claim in report.claims] == [
        "10 simulated machines: constants off by at most",
        "10 simulated machines: constants found certain",
        "ring in process",
        "ring in process",
        "ring across processes",
    ]
    assert json.loads(json.dumps(report.as_json(), allow_nan=False))["bench"] == "memory_policies"
