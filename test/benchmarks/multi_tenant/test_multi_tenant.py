"""What is claimed of rivals that serve the same requests, and what rows say; no test depends on times."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from benchmark_commands import reported
from tenant_costs import COSTS, FUSED, MODELS, MODES, NAMES

from benchmarks.common.claim import Claim, Verdict
from benchmarks.common.report import Report
from benchmarks.multi_tenant import __main__ as bench
from benchmarks.multi_tenant import costs as tenant_costs
from benchmarks.multi_tenant import decisions, rivals
from benchmarks.multi_tenant import rows as tenant_rows
from benchmarks.multi_tenant.claims import claims_of, delay_bound
from benchmarks.multi_tenant.load import Load, Serve, load_models
from benchmarks.multi_tenant.log import Execution, Log
from benchmarks.multi_tenant.replays import AT_ONCE, BOUND, POISSON, Replays, name_of
from benchmarks.multi_tenant.stacks import ALIKE
from benchmarks.multi_tenant.trace import at_once, poisson_trace
from split_infer_ros.runtime.num_threads import max_threads
from split_infer_ros.server.costs.cost_measurer import MIN_ROUNDS, WARM_UPS
from split_infer_ros.server.execution.merge_runner import Inputs, MergeRunner, Outputs
from split_infer_ros.server.schedule.execution_costs import combination_of
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.request import Request

IMAGE_RATIO = 0.8  # a merged image's cost, of a single one's
PER_SECOND = 2.0  # of simulated rivals


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    found = load_models(MODELS, 64, torch.device("cpu"))
    yield found
    found.close()


def made_up(part: float = 3.0, turns: int = 10) -> Replays:
    """Replays with made-up figures, the same in each turn; those of sequential execution are 1."""
    throughputs = dict(zip(NAMES, (1.0, 1.1, 0.9, 1.05, 1.05, 1.4, 1.5), strict=True))

    def conclude(each: Replays) -> list[Claim]:
        return claims_of(each, part == 3.0, False, IMAGE_RATIO)

    found = Replays(None, dict.fromkeys(NAMES), part, 6, lambda: 0.0, conclude)  # type: ignore[arg-type]
    for name, per_second in throughputs.items():
        for what in (POISSON, AT_ONCE):
            times = dict.fromkeys(tenant_rows.TIMES, 1.5 - per_second / 2) | {"per_second": per_second}
            for figure, value in times.items():
                found.contest.figures[name_of(name, figure, what)] = [value] * turns
        with found.usage.of(name):
            found.counts[name].update(executions=6, merged=0, fused=0, on_lanes=0)
    found.contest.figures[BOUND] = [2.0] * turns
    found.contest.turns, found.contest.spent_s = turns, 2.0 * turns
    return found


def test_claims_compare_with_breadth_first_and_sequential() -> None:
    replays = made_up()
    found = {claim.name: claim for claim in replays.contest.conclude(replays.contest)}
    gap = found["at 3 times capacity: part of the gap to the bound"]
    assert (gap.found.value, gap.verdict) == (pytest.approx(0.5), Verdict.FAILS)
    assert found["at 3 times capacity: throughput, times breadth-first's"].found.value == pytest.approx(1.5 / 0.9)
    assert found["at 3 times capacity: throughput, times breadth-first's"].paper == "2.7x"
    assert found["at 3 times capacity: p99 delay, times breadth-first's"].paper == "0.37x"
    assert found["at 3 times capacity: mean delay, times sequential's"].found.value == pytest.approx(0.75)
    assert found["at 3 times capacity: mean delay, times the best rival's"].found.value == pytest.approx(0.75 / 0.95)
    assert found["at 3 times capacity: mean delay, times the best rival's"].goal == pytest.approx(
        delay_bound(IMAGE_RATIO, 3.0)
    )
    assert found["at 3 times capacity: p99 delay, times the best rival's"].goal == 1.0
    assert found["at 3 times capacity: throughput, times the best rival's"].found.value == pytest.approx(1.5 / 1.1)
    assert found["at 3 times capacity: throughput of merging alone, times sequential's"].verdict == Verdict.HOLDS
    assert found["three requests at once: throughput, times sequential's"].verdict == Verdict.HOLDS
    assert all(claim.turn_s == 2.0 for claim in found.values())
    assert not any("fus" in name for name in found)  # nothing was fused
    on_gpu = {claim.name: claim for claim in claims_of(replays, True, True, IMAGE_RATIO)}
    assert on_gpu.keys() == found.keys()
    assert on_gpu["at 3 times capacity: throughput, times breadth-first's"].verdict == Verdict.FAILS
    assert on_gpu["at 3 times capacity: throughput of merging alone, times sequential's"].goal == 2.1


def test_lighter_loads_claim_delays_alone() -> None:
    replays = made_up(0.5)
    assert [claim.name for claim in replays.contest.conclude(replays.contest)] == [
        f"at 0.5 times capacity: {figure}, times the best rival's"
        for figure in ("mean delay", "p99 delay", "mean response")
    ]


def test_the_delay_of_a_growing_queue_follows_from_the_cost_of_a_merged_image() -> None:
    assert delay_bound(1.2, 3.0) == delay_bound(1.0, 3.0) == delay_bound(0.99, 3.0) == delay_bound(0.5, 1.0) == 1.0
    assert delay_bound(0.5, 3.0) == pytest.approx(0.25 + 0.05)
    assert delay_bound(0.1, 3.0) == 0.05
    # 300 requests arrive in 100 s. Merged, an image takes half of the single image's second.
    arrivals = [number / 3 for number in range(300)]
    single, merged = (
        sum(number * image_s - arrival for number, arrival in enumerate(arrivals)) for image_s in (1.0, 0.5)
    )
    assert merged / single == pytest.approx(delay_bound(0.5, 3.0) - 0.05, rel=1e-6)


def test_rows_say_for_which_models_merging_pays() -> None:
    found = {(row["model"], row["size"]): row for row in tenant_rows.merging_rows(MODES, 8)}
    assert list(found) == [(MODELS[1], 8)]
    for (model, size), row in found.items():
        single_s, merged_s = (
            min(MODES.whole.batch_s(model, count), MODES.lane.batch_s(model, count) / MODES.num_lanes) / count
            for count in (1, size)
        )
        assert row["image_ratio"] == pytest.approx(merged_s / single_s)
        assert row["pays"] == (row["image_ratio"] < 0.97)


def test_only_the_named_rivals_take_part() -> None:
    replays = made_up()
    for name in (rivals.BREADTH_FIRST, rivals.MERGE):
        replays.rivals.remove(name)
    names = [claim.name for claim in claims_of(replays, True, False, IMAGE_RATIO)]
    assert not any("breadth" in name or "merging alone" in name for name in names)
    assert "at 3 times capacity: throughput, times the best rival's" in names


def test_few_turns_decide_nothing() -> None:
    replays = made_up(turns=9)
    assert {claim.verdict for claim in replays.contest.conclude(replays.contest)} == {Verdict.UNCLEAR}


def test_rows_say_what_was_executed_and_what_it_took() -> None:
    replays = made_up()
    rows = {row["rival"]: row for row in tenant_rows.served_rows(replays, on_gpu=True)}
    assert list(rows) == list(NAMES)
    assert {name for name, row in rows.items() if row["launches"] == "kernels"} == {rivals.BREADTH_FIRST}
    for row in rows.values():
        assert row["peak_mb"] > 0
        assert {"executions", "merged", "fused", "on_lanes"} <= row.keys()
        assert {"cpu_busy", "response_p99_s", "per_second_low"} <= row.keys()
    assert "launches" not in next(tenant_rows.served_rows(replays, on_gpu=False))
    assert [row["rival"] for row in tenant_rows.at_once_rows(replays)] == list(NAMES)
    steps = {row["step"]: row["per_second"] for row in tenant_rows.step_rows(replays)}
    assert steps["fusing"] == 1.0
    assert steps["lanes"] == pytest.approx(1.4 / 1.05)


def test_the_command_reports_made_up_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(device: torch.device, extent: bench.Extent, chosen: Namespace) -> Report:
        assert extent == replace(bench.QUICK, loads=[3.0])
        replays = made_up()
        rows = list(tenant_rows.served_rows(replays, on_gpu=False))
        return Report("multi_tenant", list(replays.contest.conclude(replays.contest)), rows, bench.panels(replays))

    monkeypatch.setattr(bench, "run", run)
    monkeypatch.setattr(bench, "prepare_process", lambda: None)
    found = reported(bench.main, tmp_path, "--quick", "--load", "3", "--device", "cpu")
    assert {claim["name"]: claim["value"] for claim in found["claims"]}[
        "at 3 times capacity: part of the gap to the bound"
    ] == pytest.approx(0.5)
    assert [row["rival"] for row in found["rows"]] == list(NAMES)


def test_each_turn_has_a_trace_that_all_rivals_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[str, list[Request]]] = []

    def serve(name: str) -> Serve:
        def note(trace: Sequence[Request], load: Load) -> Log:
            served.append((name, list(trace)))
            return Log({0: 0.0}, {0: 0.25}, {0: 0.25 + 1 / PER_SECOND}, [Execution({"a": 2})])

        return note

    class Stub:
        models = dict.fromkeys("ab")

    def bound() -> float:
        served.append((BOUND, []))
        return 7.0

    names = (rivals.SEQUENTIAL, "y", "z")
    replays = Replays(Stub(), {name: serve(name) for name in names}, 3.0, 10, bound, lambda each: ())  # type: ignore[arg-type]
    orders = []
    for number in range(2):
        begin = len(served)
        replays.contest.take()
        turn = served[begin:]
        traces = [trace for _, trace in turn if len(trace) == 10]
        assert traces == 3 * [poisson_trace("ab", 10, 3.0 * PER_SECOND, seed=number)]
        few = [name for name, trace in turn if trace == at_once("ab")]
        assert few.count("y") == few.count("z") == 1 + WARM_UPS
        assert [name for name, _ in turn].count(BOUND) == 1
        orders.append([name for name, trace in turn if len(trace) in (0, 10)])
    assert orders[0] != orders[1]
    assert list(replays.bounds) == [7.0, 7.0]
    assert list(replays.samples("y", "delay_mean_s")) == [0.25, 0.25]
    assert list(replays.samples("y", "response_mean_s", AT_ONCE)) == [0.75, 0.75]
    assert replays.counts["y"] == {"executions": 2, "merged": 2, "fused": 0, "stacked": 0, "on_lanes": 0}


def test_fusing_is_compared_with_its_parts(load: Load) -> None:
    contest = tenant_costs.fusion_contest(load, COSTS)
    for _ in range(2):
        contest.take()
    (row,) = tenant_rows.fusion_rows(contest, COSTS)
    assert row["models"] == "1 mobilenet_v2 + 1 squeezenet1_0"
    assert row["is_fused"]
    assert min(row["fused_s"], row["apart_s"], row["fused_times_apart"]) > 0
    assert row["turns"] == 2


def test_forked_graph_is_claimed_to_take_no_longer(load: Load) -> None:
    contest = tenant_costs.fusion_contest(load, COSTS)
    assert list(contest.conclude(contest)) == [], "only on a GPU is a fused execution one graph"
    for how, seconds in ((tenant_costs.FUSED, 1.0), (tenant_costs.APART, 2.0)):
        contest.figures[tenant_costs.figure(FUSED, how)] = [seconds] * 10
    (claim,) = tenant_costs.fusion_claims(contest, [FUSED])
    assert (claim.found.value, claim.verdict) == (0.5, Verdict.HOLDS)


def test_costs_are_of_every_batch_and_fusion(load: Load) -> None:
    ran: list[dict[str, int]] = []

    class Stub:
        graphs = None

        def prepare(self, inputs: Inputs) -> None:
            pass

        def run(self, inputs: Inputs) -> Outputs:
            ran.append({name: len(images) for name, images in inputs.items()})
            return {}

    costs = tenant_costs.measure_costs(load, Stub(), (1, 4))  # type: ignore[arg-type]
    assert all(costs.alone_s[name].keys() == {1, 4} for name in MODELS)
    assert costs.fused_s.keys() == {combination_of(dict.fromkeys(MODELS[:2], count)) for count in (1, 2)}
    assert all(ran.count({name: size}) >= WARM_UPS + MIN_ROUNDS for name in MODELS for size in (1, 4))
    assert not tenant_costs.measure_costs(load, Stub(), (1,), fuse=False).fused_s  # type: ignore[arg-type]


def test_bound_runs_best_batches_in_each_mode(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []
    run = MergeRunner.run

    def note(runner: MergeRunner, inputs: Inputs) -> Outputs:
        ran.extend((name, len(images)) for name, images in inputs.items())
        return run(runner, inputs)

    monkeypatch.setattr(MergeRunner, "run", note)
    assert tenant_costs.best_batch(COSTS, "mobilenet_v2") == 8
    assert tenant_costs.Bound(load, ExecutionModes(COSTS)).per_second() > 0
    assert ran == 2 * [("squeezenet1_0", 1), ("mobilenet_v2", 8), ("resnet18", 1)]
    ran.clear()
    assert tenant_costs.Bound(load, replace(MODES, lane=COSTS)).per_second() > 0
    assert ran.count(("squeezenet1_0", 1)) == 2 * (1 + 2 * 8)  # twice in each mode: on two lanes as many as the largest
    assert ran.count(("mobilenet_v2", 8)) == 2 * (1 + 2)


def test_decisions_are_timed_with_late_requests_and_without() -> None:
    cases = [(5, 20, False), (5, 20, True)]
    contest = decisions.decision_contest(COSTS, cases)
    contest.take()
    assert set(contest.figures) == {decisions.name_of(case) for case in cases}
    assert all(value > 0 for (value,) in contest.figures.values())


def test_slowest_window_decides_about_decisions() -> None:
    contest = decisions.decision_contest(COSTS, [])
    for window, waiting, late in decisions.CASES:
        slow = late and window == 16
        contest.figures[decisions.name_of((window, waiting, late))] = [60.0 if slow else 20.0] * 10
    assert [(claim.found.value, claim.verdict) for claim in contest.conclude(contest)] == [
        (20, Verdict.HOLDS),
        (60, Verdict.FAILS),
    ]


@pytest.mark.slow
def test_run_reports_every_rival_and_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    extent = replace(bench.QUICK, models=MODELS, side=64, requests=6, sizes=(1, 2), alike=MODELS[:1])
    report = bench.run(torch.device("cpu"), extent, Namespace(seconds=0.0, quick=True, engine="torch", rivals=None))
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))
    what = [row["what"] for row in found["rows"]]
    expected = 7 if max_threads() > 1 else 5
    assert what.count(POISSON) == what.count(AT_ONCE) >= expected
    assert what.count("fusion") == what.count("stack") == 2
    assert what.count(ALIKE) >= 4
    assert {claim["verdict"] for claim in found["claims"]} == {Verdict.UNCLEAR}  # one turn
    assert {tuple(panel.samples) for panel in report.panels if hasattr(panel, "samples")} == {
        tuple(row["rival"] for row in found["rows"] if row["what"] == POISSON)
    }
    assert "0 fused" in capsys.readouterr().out


def test_quick_run_has_a_small_network_for_a_large_one() -> None:
    chosen = Namespace(quick=True, models=None, alike=None, requests=None, load=[0.5], window=None)
    assert bench.extent_of(chosen) == replace(bench.QUICK, loads=[0.5])
    assert "vgg16" not in bench.QUICK.models
    assert bench.FULL.models == ("alexnet", "resnet18", "vgg16")
    assert bench.FULL.loads == (3.0, 1.0, 0.5)
