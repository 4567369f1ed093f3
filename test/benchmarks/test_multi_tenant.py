"""Is every request served once in each way, and what is claimed? Times depend on the machine and are not for a test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import _tenant_rivals as rivals
import multi_tenant as bench
import pytest
import torch

from split_infer_ros.split.cores import all_cores
from split_infer_ros.split.load import load_model
from split_infer_ros.tenancy.costs import Costs, Group, group
from split_infer_ros.tenancy.engine import Engine, Inputs, Outputs
from split_infer_ros.tenancy.graph_choice import as_recorded, graphs_for
from split_infer_ros.tenancy.measure import blank
from split_infer_ros.tenancy.scheduler import Rules
from split_infer_ros.tenancy.ways import Ways

MODELS = ("shapes", "squeezenet1_0")
COSTS = Costs({"shapes": 1, "squeezenet1_0": 2}, {"shapes": {1: 0.01}, "squeezenet1_0": {1: 0.02}})

WAYS = Ways(COSTS, 2, replace(COSTS, alone_s={"shapes": {1: 0.015}, "squeezenet1_0": {1: 0.03}}))


@pytest.fixture(scope="module")
def load() -> Iterator[rivals.Load]:
    models = {model: load_model(model, "random", "cpu") for model in MODELS}
    found = rivals.Load(models, {model: torch.rand_like(blank(found, 1)) for model, found in models.items()})
    yield found
    found.close()


def test_a_trace_is_the_same_each_time_and_even() -> None:
    trace = rivals.poisson_trace(bench.MODELS, 1000, 10.0)
    assert trace == rivals.poisson_trace(bench.MODELS, 1000, 10.0)
    counts = [sum(request.model == model for request in trace) for model in bench.MODELS]
    assert sorted(counts) == [333, 333, 334]
    assert 80 < trace[-1].arrival_s < 120
    assert [request.arrival_s for request in trace] == sorted(request.arrival_s for request in trace)


@pytest.mark.parametrize("name", list(bench.rivals(WAYS, [2])))
def test_every_way_serves_each_request_once(name: str, load: rivals.Load) -> None:
    log = bench.rivals(WAYS, [2])[name](rivals.poisson_trace(MODELS, 6, 200.0), load)
    assert sorted(log.arrival_s) == sorted(log.start_s) == sorted(log.end_s) == list(range(6))
    assert all(log.arrival_s[number] <= start <= log.end_s[number] for number, start in log.start_s.items())
    found = bench.facts(log)
    assert found["delay_mean_s"] <= found["delay_p99_s"]
    assert found["per_second"] > 0
    assert found["response_s"] >= found["delay_mean_s"]


def test_workers_that_spoil_each_others_results_are_found_out(
    load: rivals.Load, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("name", [name for name in bench.rivals(WAYS, [2]) if name != bench.BREADTH_FIRST])
def test_all_that_runs_was_to_be_recorded_before_the_first_request_came(
    name: str, load: rivals.Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what has several models, each model's own batch: on a GPU these graphs serve then."""
    prepared: list[tuple[Engine, Group]] = []
    ran = 0
    prepare, run, arrivals = Engine.prepare, Engine.run, rivals.Arrivals

    def counts(inputs: Inputs) -> dict[str, int]:
        return {name: len(images) for name, images in inputs.items()}

    def note(engine: Engine, inputs: Inputs) -> None:
        prepared.append((engine, group(counts(inputs))))
        prepare(engine, inputs)

    def check(engine: Engine, inputs: Inputs) -> Outputs:
        nonlocal ran
        ran += 1
        known = {found for other, found in prepared if other is engine}
        assert on_lanes or graphs_for(as_recorded(counts(inputs)), known)
        return run(engine, inputs)

    def begin(trace: object, log: object) -> rivals.Arrivals:
        monkeypatch.setattr(Engine, "prepare", lambda engine, inputs: pytest.fail("requests had come"))
        return arrivals(trace, log)  # type: ignore[arg-type]

    on_lanes = bench.kind(name) == bench.FUSE  # which a GPU has none of
    monkeypatch.setattr(Engine, "prepare", note)
    monkeypatch.setattr(Engine, "run", check)
    monkeypatch.setattr(rivals, "Arrivals", begin)
    bench.rivals(WAYS, [2])[name](rivals.poisson_trace(MODELS, 6, 2000.0), load)
    assert ran >= 3


def test_what_is_recorded_is_what_may_be_decided_on() -> None:
    fused = Costs({"a": 1, "b": 1, "c": 9}, {name: {1: 1.0, 4: 2.0} for name in "abc"}, {(("a", 1), ("b", 1)): 1.5})
    found = list(rivals.to_record(fused, Rules(window=3)))
    assert found[:9] == [((name, size),) for size in (4, 2, 1) for name in "abc"]
    assert found[9:] == [(("a", 1), ("b", 1)), (("a", 1), ("b", 2)), (("a", 2), ("b", 1))]


def test_on_a_gpu_a_row_says_how_its_rival_launches() -> None:
    turns = [bench.facts(rivals.Log({0: 0.0}, {0: 0.5}, {0: 1.0}))]
    rows = [bench.served(3.0, rival, turns, torch.device("cuda")) for rival in bench.rivals(WAYS, [2])]
    assert {row["rival"] for row in rows if row["launches"] == "kernels"} == {bench.BREADTH_FIRST}
    assert "launches" not in bench.served(3.0, bench.SEQUENTIAL, turns, torch.device("cpu"))
    assert rows[0]["delay_mean_s"] == 0.5


def served(load: float, rival: str, per_second: float, delay: float) -> dict[str, object]:
    facts = {"per_second": per_second, "execution_s": 1.0, "delay_mean_s": delay, "delay_p99_s": 2 * delay}
    return {"what": "poisson", "load": load, "rival": rival} | facts


ROWS = [
    {"what": "bound", "per_second": 20.0},
    served(3.0, bench.SEQUENTIAL, 10.0, 4.0), served(3.0, "concurrent, 2 workers", 10.0, 3.0),
    served(3.0, bench.BREADTH_FIRST, 9.0, 5.0), served(3.0, "merge, window 8", 15.0, 2.5),
    served(3.0, "merge and fuse, window 8", 18.0, 2.0), served(3.0, "merge and fuse, window 5", 17.0, 1.5),
    served(0.5, bench.SEQUENTIAL, 5.0, 0.5), served(0.5, "merge and fuse, window 8", 5.0, 0.4),
    {"what": "three requests", "rival": bench.SEQUENTIAL, "per_second": 10.0},
    {"what": "three requests", "rival": bench.FUSE, "per_second": 9.9},
    {"what": "decision", "window": 8, "waiting": bench.WAITING, "late": False, "p50_us": 40.0},
    {"what": "decision", "window": 8, "waiting": bench.WAITING, "late": True, "p50_us": 60.0},
]  # fmt: skip


def test_what_is_claimed_with_and_without_a_gpu() -> None:
    heavy, light = (f"at {load} times capacity, merge and fuse, window 8" for load in ("3", "0.5"))
    found = {claim.name: (claim.value, claim.holds) for claim in bench.conclude(ROWS, on_gpu=True)}
    assert found[f"{heavy}: part of the gap to the bound"] == (0.8, True)
    assert found[f"{heavy}: mean delay, times the best rival's"] == (pytest.approx(2 / 3), True)
    assert found[f"{light}: p99 delay, times the best rival's"] == (pytest.approx(0.8), True)
    assert found["three requests: throughput, times sequential"] == (0.99, True)
    assert found[f"a decision with {bench.WAITING:,} waiting, all late"] == (60.0, False)
    assert found["merge alone: throughput, times sequential"] == (1.5, False)
    assert found["at 3 times capacity: throughput, times sequential"] == (1.8, False)
    on_cpu = {claim.name for claim in bench.conclude(ROWS, on_gpu=False)}
    assert len(on_cpu) == 8
    assert on_cpu < set(found)


def test_of_windows_and_workers_the_best_are_shown_and_go_on_to_lighter_loads() -> None:
    ours = ["merge, window 8", "merge and fuse, window 8"]
    best = [bench.SEQUENTIAL, "concurrent, 2 workers", bench.BREADTH_FIRST, *ours]
    assert bench.best_of_each(ROWS) == best
    assert [list(panel.samples) for panel in bench.panels(ROWS)] == [best] * 4


def test_decisions_are_timed_with_late_ones_and_without() -> None:
    costs = Costs(dict.fromkeys(bench.MODELS, 1), {name: {1: 1.0} for name in bench.MODELS})
    rows = bench.scheduler_cost(costs, (5,), rounds=3)
    assert [(row["waiting"], row["late"]) for row in rows] == [
        (waiting, late) for waiting in (100, 1000, 10_000) for late in (False, True)
    ]
    assert all(row["p50_us"] > 0 for row in rows)


def test_the_bound_is_of_the_best_batch_in_the_better_way() -> None:
    whole = Costs({"a": 1}, {"a": {1: 1.0, 4: 3.0}})
    lane = Costs({"a": 1}, {"a": {1: 1.4, 4: 6.4}})
    assert bench.best_batch(Ways(whole, 2, lane), "a") == (True, 1)
    assert bench.best_batch(Ways(whole), "a") == (False, 4)


def test_the_bound_is_what_was_sampled(load: rivals.Load) -> None:
    extent = replace(bench.QUICK, sizes=(1,))
    ground = bench.Ground(load, extent)
    for _ in range(3):
        ground.sample_bound()
    assert all(len(samples) == 3 for samples in ground._samples_s.values())
    ground._samples_s = {"shapes": [0.1, 0.1, 9.0], "squeezenet1_0": [0.3, 0.3, 0.1]}
    assert ground.bound_per_second == pytest.approx(5.0)
    assert ground.ways.lanes == (all_cores() if all_cores() > 1 else 0)
    ground.close()


def test_turns_begin_with_another_way_each_and_the_bound_is_sampled_in_between(load: rivals.Load) -> None:
    def serve(name: str) -> rivals.Serve:
        def note(trace: object, load: object) -> rivals.Log:
            order.append(name)
            return rivals.Log({0: 0.0}, {0: 0.0}, {0: 1.0})

        return note

    order: list[str] = []
    ways = {name: serve(name) for name in "xyz"}
    bench.serve_in_turns(ways, [], load, 2, lambda: order.append("-"))
    assert "".join(order) == "-x-y-z-y-z-x"


def test_on_lanes_no_camera_is_on_two(load: rivals.Load) -> None:
    log = rivals.Scheduled(replace(WAYS, lanes=3), Rules(4))(rivals.poisson_trace(MODELS, 16, 2000.0), load)
    assert sorted(log.end_s) == list(range(16))
    for model in MODELS:
        for camera in range(rivals.CAMERAS):
            mine = [
                request.number
                for request in rivals.poisson_trace(MODELS, 16, 2000.0)
                if request.tenant == f"{model} {camera}"
            ]
            for before, after in itertools.pairwise(mine):
                together = log.start_s[before] == log.start_s[after]
                assert together or log.end_s[before] <= log.start_s[after]
