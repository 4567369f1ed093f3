"""Is every request served once by each rival, what do they execute, and what is claimed? Times are not for a test."""

from __future__ import annotations

import itertools
import json
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace

import _breadth_first as breadth_first
import _tenant_costs as tenant_costs
import _tenant_decisions as decisions
import _tenant_rivals as rivals
import _tenant_rows as tenant_rows
import multi_tenant as bench
import pytest
import torch
from _tenant_claims import claims_of, ours
from _tenant_load import Load, Serve, load_models
from _tenant_log import Execution, Log
from _tenant_replays import AT_ONCE, BOUND, POISSON, Replays, name_of
from _tenant_scheduled import Scheduled, to_record
from _tenant_trace import CAMERAS, Arrivals, at_once, poisson_trace

from split_infer_ros.split.cores import all_cores
from split_infer_ros.telemetry.claim import FAILS, HOLDS, UNCLEAR
from split_infer_ros.tenancy.costs import Costs, Group, group
from split_infer_ros.tenancy.engine import Engine, Inputs, Outputs
from split_infer_ros.tenancy.graph_choice import as_recorded, graphs_for
from split_infer_ros.tenancy.request import Request
from split_infer_ros.tenancy.scheduler import Rules
from split_infer_ros.tenancy.ways import Ways

MODELS = ("squeezenet1_0", "mobilenet_v2", "resnet18")  # the first two have fewer parameters than the mean
SMALL = MODELS[:2]
FUSED = group(dict.fromkeys(SMALL, 1))
PARAMETERS = dict(zip(MODELS, (1, 2, 12), strict=True))
ALONE_S = dict(zip(MODELS, ({1: 0.01}, {1: 0.02, 8: 0.08}, {1: 0.03}), strict=True))
COSTS = Costs(PARAMETERS, ALONE_S, {FUSED: 0.02})
WAYS = Ways(COSTS, 2, Costs(PARAMETERS, {name: {1: 1.5 * seconds[1]} for name, seconds in ALONE_S.items()}))
NAMES = (
    rivals.SEQUENTIAL,
    f"{rivals.CONCURRENT}, 2 workers",
    rivals.BREADTH_FIRST,
    rivals.MERGE,
    rivals.FUSE,
    rivals.with_lanes(rivals.MERGE),
    rivals.with_lanes(rivals.FUSE),
)


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    found = load_models(MODELS, 64, torch.device("cpu"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def every(load: Load) -> dict[str, Serve]:
    return rivals.rivals(load, WAYS, window=4)


def test_trace_is_reproducible_and_even() -> None:
    trace = poisson_trace(MODELS, 1000, 10.0)
    assert trace == poisson_trace(MODELS, 1000, 10.0)
    assert trace != poisson_trace(MODELS, 1000, 10.0, seed=1)
    counts = [sum(request.model == model for request in trace) for model in MODELS]
    assert sorted(counts) == [333, 333, 334]
    assert 80 < trace[-1].arrival_s < 120
    assert [request.arrival_s for request in trace] == sorted(request.arrival_s for request in trace)


def test_ablation_is_complete(every: dict[str, Serve], load: Load) -> None:
    assert set(NAMES) <= set(every)
    assert ours(NAMES) == "merge and fuse, lanes"
    without = rivals.rivals(load, Ways(COSTS), 4)
    assert not any(name.endswith("lanes") for name in without)
    assert ours(list(without)) == "merge and fuse"


@pytest.mark.parametrize("name", NAMES)
def test_every_rival_serves_each_request_once(name: str, load: Load, every: dict[str, Serve]) -> None:
    log = every[name](poisson_trace(MODELS, 9, 200.0), load)
    assert sorted(log.arrival_s) == sorted(log.start_s) == sorted(log.end_s) == list(range(9))
    assert all(log.arrival_s[number] <= start <= log.end_s[number] for number, start in log.start_s.items())
    assert sum(sum(execution.counts.values()) for execution in log.executions) == 9
    found = log.times()
    assert found["delay_mean_s"] <= found["delay_p99_s"]
    assert found["response_mean_s"] == pytest.approx(found["delay_mean_s"] + found["execution_mean_s"])
    assert found["per_second"] > 0


@pytest.mark.parametrize(
    ("name", "merges", "fuses", "has_lanes"),
    [
        (rivals.SEQUENTIAL, False, False, False),
        (rivals.MERGE, True, False, False),
        (rivals.FUSE, True, True, False),
        (rivals.with_lanes(rivals.MERGE), False, False, True),
    ],
)
def test_rivals_do_what_they_are_named_for(
    name: str, merges: bool, fuses: bool, has_lanes: bool, load: Load, every: dict[str, Serve]
) -> None:
    counts = every[name](poisson_trace(MODELS, 24, 1e6), load).counts()
    assert (counts["merged"] > 0, counts["fused"] > 0, counts["on_lanes"] > 0) == (merges, fuses, has_lanes)


def test_nothing_is_fused_where_that_costs_more(load: Load) -> None:
    dear = replace(COSTS, fused_s={FUSED: 0.04})
    counts = Scheduled(Ways(dear), Rules(4))(poisson_trace(MODELS, 24, 1e6), load).counts()
    assert counts["fused"] == 0
    assert counts["executions"] < 24
    assert not tenant_costs.pays(dear, FUSED)
    assert tenant_costs.pays(COSTS, FUSED)


def test_executions_are_counted_by_kind() -> None:
    made = [Execution({"a": 1}), Execution({"a": 2}, True), Execution({"a": 1, "b": 1}), Execution({"a": 2, "b": 1})]
    counts = Log(executions=made).counts()
    assert counts == {"executions": 4, "merged": 2, "fused": 2, "on_lanes": 1}


def test_operators_in_order_give_what_the_model_gives(load: Load) -> None:
    for name, model in load.models.items():
        backbone = model.backbone("output")
        values: tuple[torch.Tensor, ...] = (load.images[name],)
        operators = breadth_first.operators_of(model)
        widths = []
        with torch.inference_mode():
            expected = backbone(load.images[name])
            for operator in operators:
                values = operator(*values)
                widths.append(len(values))
        torch.testing.assert_close(values, tuple(expected))
        computing = [node for node in backbone.graph.nodes if node.op in ("call_module", "call_function")]
        assert len(operators) == len(computing) > 20
        assert max(widths) <= 3  # values that nothing needs any more are gone


def test_breadth_first_takes_turns_by_operator() -> None:
    called: list[str] = []

    def operators(name: str, count: int) -> list[breadth_first.Operator]:
        return [lambda x: (called.append(name), (x,))[1] for _ in range(count)]

    image = torch.zeros(1)

    class Stub:
        device = torch.device("cpu")
        images = dict.fromkeys("abc", image)

    rival = breadth_first.BreadthFirst({"a": operators("a", 3), "b": operators("b", 1), "c": operators("c", 2)}, 2)
    log = rival(at_once("abc"), Stub())  # type: ignore[arg-type]
    assert "".join(called[:3]) == "aba"
    assert sorted(called) == list("aaabcc")
    assert sorted(log.end_s) == [0, 1, 2]


def test_workers_that_spoil_each_others_results_are_found_out(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    concurrent, run, at_work = rivals.Concurrent(2), Engine.run, set[Engine]()
    concurrent.check(load)

    def spoilt(engine: Engine, inputs: Inputs) -> Outputs:
        found = run(engine, inputs)
        at_work.add(engine)
        if len(at_work) == 1:
            return found  # by itself it is right
        return {name: [value + 1 for value in values] for name, values in found.items()}

    monkeypatch.setattr(Engine, "run", spoilt)
    with pytest.raises(RuntimeError, match="2 workers side by side give wrong results for"):
        concurrent.check(load)


@pytest.mark.parametrize("name", [name for name in NAMES if name != rivals.BREADTH_FIRST])
def test_graphs_are_recorded_before_the_first_request(
    name: str, load: Load, every: dict[str, Serve], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For several models as one, each model's own batch is recorded at least: on a GPU these graphs serve then."""
    prepared: list[tuple[Engine, Group]] = []
    ran = 0
    prepare, run, begin = Engine.prepare, Engine.run, Arrivals.__init__

    def counts(inputs: Inputs) -> dict[str, int]:
        return {name: len(images) for name, images in inputs.items()}

    def note(engine: Engine, inputs: Inputs) -> None:
        prepared.append((engine, group(counts(inputs))))
        prepare(engine, inputs)

    def check(engine: Engine, inputs: Inputs) -> Outputs:
        nonlocal ran
        ran += 1
        known = {found for other, found in prepared if other is engine}
        assert name.endswith("lanes") or graphs_for(as_recorded(counts(inputs)), known)  # a GPU has no lanes
        return run(engine, inputs)

    def first_request(arrivals: Arrivals, trace: Sequence[Request], log: Log) -> None:
        monkeypatch.setattr(Engine, "prepare", lambda engine, inputs: pytest.fail("requests had come"))
        begin(arrivals, trace, log)

    monkeypatch.setattr(Engine, "prepare", note)
    monkeypatch.setattr(Engine, "run", check)
    monkeypatch.setattr(Arrivals, "__init__", first_request)
    every[name](poisson_trace(MODELS, 6, 2000.0), load)
    assert ran >= 2


def test_recorded_is_what_may_be_decided_on() -> None:
    fused = Costs({"a": 1, "b": 1, "c": 9}, {name: {1: 1.0, 4: 2.0} for name in "abc"}, {(("a", 1), ("b", 1)): 1.5})
    found = list(to_record(fused, Rules(window=3)))
    assert found[:9] == [((name, size),) for size in (4, 2, 1) for name in "abc"]
    assert found[9:] == [(("a", 1), ("b", 1)), (("a", 1), ("b", 2)), (("a", 2), ("b", 1))]


def test_no_camera_is_on_two_lanes_at_once(load: Load) -> None:
    trace = poisson_trace(MODELS, 24, 2000.0)
    log = Scheduled(replace(WAYS, lanes=3), Rules(4))(trace, load)
    assert sorted(log.end_s) == list(range(24))
    for model, camera in itertools.product(MODELS, range(CAMERAS)):
        mine = [request.number for request in trace if request.tenant == f"{model} {camera}"]
        for before, after in itertools.pairwise(mine):
            together = log.start_s[before] == log.start_s[after]
            assert together or log.end_s[before] <= log.start_s[after]


def recorded(part: float = 3.0, turns: int = 10) -> Replays:
    """Replays whose figures are as given, the same in each turn; sequential execution is 1 throughout."""
    throughputs = dict(zip(NAMES, (1.0, 1.1, 0.9, 1.05, 1.05, 1.4, 1.5), strict=True))
    found = Replays(
        None, dict.fromkeys(NAMES), part, 10.0, 6, lambda: 0.0, lambda each: claims_of(each, part == 3.0, False)
    )  # type: ignore[arg-type]
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
    replays = recorded()
    found = {claim.name: claim for claim in replays.contest.conclude(replays.contest)}
    gap = found["at 3 times capacity: part of the gap to the bound"]
    assert (gap.found.value, gap.verdict) == (pytest.approx(0.5), FAILS)
    assert found["at 3 times capacity: throughput, times breadth-first's"].found.value == pytest.approx(1.5 / 0.9)
    assert found["at 3 times capacity: throughput, times breadth-first's"].paper == "2.7x"
    assert found["at 3 times capacity: p99 delay, times breadth-first's"].paper == "0.37x"
    assert found["at 3 times capacity: mean delay, times sequential's"].found.value == pytest.approx(0.75)
    assert found["at 3 times capacity: mean delay, times the best rival's"].found.value == pytest.approx(0.75 / 0.95)
    assert found["at 3 times capacity: throughput of merging alone, times sequential's"].verdict == HOLDS
    assert found["three requests at once: throughput, times sequential's"].verdict == HOLDS
    assert all(claim.turn_s == 2.0 for claim in found.values())
    assert not any("fus" in name for name in found)  # nothing was fused
    on_gpu = {claim.name: claim for claim in claims_of(replays, True, on_gpu=True)}
    assert on_gpu.keys() == found.keys()
    assert on_gpu["at 3 times capacity: throughput, times breadth-first's"].verdict == FAILS
    assert on_gpu["at 3 times capacity: throughput of merging alone, times sequential's"].goal == 2.1


def test_lighter_loads_claim_delays_alone() -> None:
    replays = recorded(0.5)
    assert [claim.name for claim in replays.contest.conclude(replays.contest)] == [
        f"at 0.5 times capacity: {figure} delay, times the best rival's" for figure in ("mean", "p99")
    ]


def test_few_turns_decide_nothing() -> None:
    replays = recorded(turns=9)
    assert {claim.verdict for claim in replays.contest.conclude(replays.contest)} == {UNCLEAR}


def test_rows_say_what_was_executed_and_what_it_took() -> None:
    replays = recorded()
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


def test_each_turn_has_a_trace_that_all_rivals_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[str, list[Request]]] = []

    def serve(name: str) -> Serve:
        def note(trace: Sequence[Request], load: Load) -> Log:
            served.append((name, list(trace)))
            return Log({0: 0.0}, {0: 0.25}, {0: 1.0}, [Execution({"a": 2})])

        return note

    class Stub:
        models = dict.fromkeys("ab")

    def bound() -> float:
        served.append((BOUND, []))
        return 7.0

    replays = Replays(Stub(), {name: serve(name) for name in "xyz"}, 3.0, 1.0, 8, bound, lambda each: ())  # type: ignore[arg-type]
    for _ in range(2):
        replays.contest.take()
    few = at_once("ab")
    for turn in (served[:10], served[10:]):
        traces = [trace for _, trace in turn if len(trace) == 8]
        assert len(traces) == 3
        assert all(trace == traces[0] for trace in traces)
        assert sum(trace == few for _, trace in turn) == 6  # twice each: the first warms up
        assert [name for name, _ in turn].count(BOUND) == 1
    assert served[2][1] != served[-1][1]
    assert served[0][0] != served[10][0]
    assert list(replays.bounds) == [7.0, 7.0]
    assert list(replays.samples("y", "delay_mean_s")) == [0.25, 0.25]
    assert list(replays.samples("y", "response_mean_s", AT_ONCE)) == [1.0, 1.0]
    assert replays.counts["x"] == {"executions": 2, "merged": 2, "fused": 0, "on_lanes": 0}


def test_fusing_is_compared_with_its_parts(load: Load) -> None:
    contest = tenant_costs.fusion_contest(load, COSTS)
    for _ in range(2):
        contest.take()
    (row,) = tenant_rows.fusion_rows(contest, COSTS)
    assert row["models"] == "1 mobilenet_v2 + 1 squeezenet1_0"
    assert row["is_fused"]
    assert min(row["fused_s"], row["apart_s"], row["fused_times_apart"]) > 0
    assert row["turns"] == 2


def test_bound_runs_best_batches_in_each_way(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[str, int]] = []
    run = Engine.run

    def note(engine: Engine, inputs: Inputs) -> Outputs:
        ran.extend((name, len(images)) for name, images in inputs.items())
        return run(engine, inputs)

    monkeypatch.setattr(Engine, "run", note)
    assert tenant_costs.best_batch(COSTS, "mobilenet_v2") == 8
    assert tenant_costs.Bound(load, Ways(COSTS)).per_second() > 0
    assert ran == 2 * [("squeezenet1_0", 1), ("mobilenet_v2", 8), ("resnet18", 1)]
    ran.clear()
    assert tenant_costs.Bound(load, replace(WAYS, lane=COSTS)).per_second() > 0
    assert ran.count(("squeezenet1_0", 1)) == 2 * (1 + 2 * 8)  # twice each way: on two lanes as many as the largest
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
    assert [(claim.found.value, claim.verdict) for claim in contest.conclude(contest)] == [(20, HOLDS), (60, FAILS)]


def test_run_reports_every_rival_and_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    extent = replace(bench.QUICK, models=MODELS, side=64, requests=6, sizes=(1, 2), rounds=1)
    report = bench.run(torch.device("cpu"), extent, Namespace(seconds=0.0, quick=True))
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))
    what = [row["what"] for row in found["rows"]]
    expected = 7 if all_cores() > 1 else 5
    assert what.count(POISSON) == what.count(AT_ONCE) >= expected
    assert what.count("fusion") == 2
    assert {claim["verdict"] for claim in found["claims"]} == {UNCLEAR}  # one turn
    assert {tuple(panel.samples) for panel in report.panels if hasattr(panel, "samples")} == {
        tuple(row["rival"] for row in found["rows"] if row["what"] == POISSON)
    }
    assert "0 fused" in capsys.readouterr().out


def test_quick_run_has_a_small_network_for_a_large_one() -> None:
    chosen = Namespace(quick=True, models=None, requests=None, load=[0.5], window=None)
    assert bench.extent_of(chosen) == replace(bench.QUICK, loads=[0.5])
    assert "vgg16" not in bench.QUICK.models
    assert bench.FULL.models == ("alexnet", "resnet18", "vgg16")
    assert bench.FULL.loads == (3.0, 1.0, 0.5)
