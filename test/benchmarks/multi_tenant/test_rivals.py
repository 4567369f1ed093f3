"""Each rival serves every request once, by the right kinds of executions; no test depends on times."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from tenant_costs import COSTS, FUSED, MODELS, MODES, NAMES

from benchmarks.multi_tenant import breadth_first, rivals
from benchmarks.multi_tenant import costs as tenant_costs
from benchmarks.multi_tenant.claims import ours
from benchmarks.multi_tenant.load import Load, Serve, load_models
from benchmarks.multi_tenant.log import Execution, Log
from benchmarks.multi_tenant.scheduled import Scheduled, to_record
from benchmarks.multi_tenant.trace import CAMERAS, Arrivals, at_once, poisson_trace
from split_infer_ros.engines.engine import Engine
from split_infer_ros.server.execution.merge_runner import Inputs, MergeRunner, Outputs
from split_infer_ros.server.schedule.execution_costs import Combination, ExecutionCosts, combination_of
from split_infer_ros.server.schedule.execution_modes import ExecutionModes
from split_infer_ros.server.schedule.graph_policy import graphs_for
from split_infer_ros.server.schedule.request import Request
from split_infer_ros.server.schedule.scheduler import Rules


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    found = load_models(MODELS, 64, torch.device("cpu"))
    yield found
    found.close()


@pytest.fixture(scope="module")
def every(load: Load) -> dict[str, Serve]:
    return rivals.rivals(load, MODES, window=4)


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
    without = rivals.rivals(load, ExecutionModes(COSTS), 4)
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
        (rivals.with_lanes(rivals.MERGE), True, False, True),
    ],
)
def test_rivals_do_what_they_are_named_for(
    name: str, merges: bool, fuses: bool, has_lanes: bool, load: Load, every: dict[str, Serve]
) -> None:
    counts = every[name](poisson_trace(MODELS, 24, 1e6), load).counts()
    assert (counts["merged"] > 0, counts["fused"] > 0, counts["on_lanes"] > 0) == (merges, fuses, has_lanes)


def test_nothing_is_fused_where_that_costs_more(load: Load) -> None:
    dear = replace(COSTS, fused_s={FUSED: 0.04})
    counts = Scheduled(ExecutionModes(dear), Rules(4))(poisson_trace(MODELS, 24, 1e6), load).counts()
    assert counts["fused"] == 0
    assert counts["executions"] < 24
    assert not tenant_costs.pays(dear, FUSED)
    assert tenant_costs.pays(COSTS, FUSED)


def test_rivals_serve_models_on_the_fastest_of_several_engines() -> None:
    load = load_models(MODELS[:1], 64, torch.device("cpu"), (Engine.TORCH, Engine.ONNXRUNTIME, Engine.OPENVINO))
    costs = ExecutionModes(ExecutionCosts({MODELS[0]: 1}, {MODELS[0]: {1: 0.01, 4: 0.02}}))
    try:
        assert len(load.engines) == 1
        for serve in rivals.rivals(load, costs, 4).values():
            assert len(serve(poisson_trace(MODELS[:1], 6, 1e6), load).end_s) == 6
    finally:
        load.close()


def test_breadth_first_order_is_for_torch_alone() -> None:
    load = load_models(MODELS[:1], 64, torch.device("cpu"), (Engine.ONNXRUNTIME,))
    costs = ExecutionModes(ExecutionCosts({MODELS[0]: 1}, {MODELS[0]: {1: 0.01}}))
    found = rivals.rivals(load, costs, 4)
    assert rivals.BREADTH_FIRST not in found
    workers = found["concurrent, 2 workers"]
    assert isinstance(workers, rivals.Concurrent)
    workers.check(load)
    log = workers(poisson_trace(MODELS[:1], 6, 1e6), load)
    load.close()
    assert sorted(log.end_s) == list(range(6))


def test_executions_are_counted_by_kind() -> None:
    made = [
        Execution({"a": 1}),
        Execution({"a": 2}, True),
        Execution({"a": 1, "b": 1}, is_stacked=True),
        Execution({"a": 2, "b": 1}),
    ]
    counts = Log(executions=made).counts()
    assert counts == {"executions": 4, "merged": 2, "fused": 2, "stacked": 1, "on_lanes": 1}


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


def test_workers_that_spoil_each_others_results_are_refused(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    concurrent, run, at_work = rivals.Concurrent(2), MergeRunner.run, set[MergeRunner]()
    concurrent.check(load)

    def spoilt(runner: MergeRunner, inputs: Inputs) -> Outputs:
        found = run(runner, inputs)
        at_work.add(runner)
        if len(at_work) == 1:
            return found  # a single worker is right
        return {name: [value + 1 for value in values] for name, values in found.items()}

    monkeypatch.setattr(MergeRunner, "run", spoilt)
    with pytest.raises(RuntimeError, match="2 concurrent workers give wrong results for"):
        concurrent.check(load)


@pytest.mark.parametrize("name", [name for name in NAMES if name != rivals.BREADTH_FIRST])
def test_graphs_are_recorded_before_the_first_request(
    name: str, load: Load, every: dict[str, Serve], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For fused models, at least each single model's batch is recorded; on a GPU these graphs serve them."""
    prepared: list[tuple[MergeRunner, Combination]] = []
    ran = 0
    prepare, run, begin = MergeRunner.prepare, MergeRunner.run, Arrivals.__init__

    def counts(inputs: Inputs) -> dict[str, int]:
        return {name: len(images) for name, images in inputs.items()}

    def note(runner: MergeRunner, inputs: Inputs) -> None:
        prepared.append((runner, combination_of(counts(inputs))))
        prepare(runner, inputs)

    def check(runner: MergeRunner, inputs: Inputs, stack: None = None) -> Outputs:
        nonlocal ran
        ran += 1
        known = {found for other, found in prepared if other is runner}
        assert name.endswith("lanes") or graphs_for(counts(inputs), known)  # a GPU has no lanes
        return run(runner, inputs, stack)

    def first_request(arrivals: Arrivals, trace: Sequence[Request], log: Log) -> None:
        monkeypatch.setattr(MergeRunner, "prepare", lambda runner, inputs: pytest.fail("requests had come"))
        begin(arrivals, trace, log)

    monkeypatch.setattr(MergeRunner, "prepare", note)
    monkeypatch.setattr(MergeRunner, "run", check)
    monkeypatch.setattr(Arrivals, "__init__", first_request)
    every[name](poisson_trace(MODELS, 6, 2000.0), load)
    assert ran >= 2


def test_everything_that_may_be_decided_is_recorded() -> None:
    fused = ExecutionCosts(
        {"a": 1, "b": 1, "c": 9}, {name: {1: 1.0, 4: 2.0} for name in "abc"}, {(("a", 1), ("b", 1)): 1.5}
    )
    found = list(to_record(fused, Rules(window=3)))
    assert found[:9] == [((name, size),) for size in (3, 2, 1) for name in "abc"]
    assert found[9:] == [(("a", 1), ("b", 1)), (("a", 1), ("b", 2)), (("a", 2), ("b", 1))]


def test_frames_of_a_camera_begin_in_their_order(load: Load) -> None:
    trace = poisson_trace(MODELS, 24, 2000.0)
    log = Scheduled(replace(MODES, num_lanes=3), Rules(4))(trace, load)
    assert sorted(log.end_s) == list(range(24))
    for model, camera in itertools.product(MODELS, range(CAMERAS)):
        mine = [request.number for request in trace if request.tenant == f"{model} {camera}"]
        for before, after in itertools.pairwise(mine):
            assert log.start_s[before] <= log.start_s[after]
