"""The search over simulated trials: what is kept, what is used, when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from partitions import partitions_of

from split_infer_ros.autotuning import tune as tune_module
from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.engine_choice import compare_engines_once
from split_infer_ros.autotuning.progress import Progress
from split_infer_ros.autotuning.record_schema import EXECUTION, OPERATORS, SCHEDULES, objection_of
from split_infer_ros.autotuning.retries import MAX_REPEATS
from split_infer_ros.autotuning.spaces import (
    CHAIN,
    CONVERSION,
    LAYOUTS,
    MICRO_BATCHES,
    NETWORK,
    PIPELINE,
    RIVAL,
    RIVALS,
    SEGMENTS,
    TURNS,
    UNIFORM,
    WORK,
    network_space,
    objection_to,
    pipeline_space,
)
from split_infer_ros.autotuning.tasks import network_task, pipeline_task
from split_infer_ros.autotuning.trial_process import TrialOutcome
from split_infer_ros.autotuning.tune import Tuner
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import MEANINGS, Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.strategies import SearchStrategy
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

CORES = 2
PACKED, CONTIGUOUS = Convolutions.PACKED.value, Convolutions.CONTIGUOUS.value


@pytest.fixture(autouse=True)
def two_cores_and_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def space(
        cores: int,
        precisions: Sequence[Precision] = (Precision.FP32,),
        device: str | None = None,
        compilers: bool | None = None,
        engines: Sequence[str] = ("torch",),
        falls_back: bool = True,
        micro_batches: Sequence[int] = MICRO_BATCHES,
    ) -> Any:
        return network_space(
            cores,
            precisions,
            device,
            compilers=False,
            engines=engines,
            falls_back=falls_back,
            micro_batches=micro_batches,
        )

    monkeypatch.setattr("split_infer_ros.engines.onednn_graph.has_onednn_graphs", lambda: False)
    for module in ("tune", "best_known"):
        monkeypatch.setattr(f"split_infer_ros.autotuning.{module}.engines_for", lambda model, precision: ("torch",))
        monkeypatch.setattr(f"split_infer_ros.autotuning.{module}.num_cores", lambda: CORES)
        monkeypatch.setattr(f"split_infer_ros.autotuning.{module}.network_space", space)


@pytest.fixture(scope="module")
def model() -> SplitModel:
    return load_model(ModelSpec("shapes", "none", "cpu"))


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


class Simulated:
    """Trials that take a second each, as a clock has it, and cost what a rule says."""

    def __init__(
        self, rule: Callable[[str, Mapping[str, Any]], TrialOutcome | None] = lambda stage, config: None
    ) -> None:
        self.now = 0.0
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.limits: list[float] = []
        self._rule = rule

    def clock(self) -> float:
        return self.now

    def start(self) -> None:
        self.now += 1.0

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        self.now += 1.0
        self.asked.append((stage, dict(config)))
        self.limits.append(limit_s)
        outcome = self._rule(stage, config)
        if outcome is not None:
            return outcome
        if stage == SEGMENTS:
            return TrialOutcome((), "ValueError: no segments today")
        if stage == RIVALS:
            return TrialOutcome()
        if stage in (NETWORK, RIVAL):
            cost = {PACKED: 2.0, CONTIGUOUS: 3.0}.get(config["convolutions"], 1.0) / config["threads"]
            return TrialOutcome((cost,), None, {"difference": 1e-6})
        return TrialOutcome((1.0 / config["batch_size"] + 0.1 * config["head_threads"],))


def tuner(
    model: SplitModel,
    runner: Simulated,
    database: Database,
    strategy: SearchStrategy = SearchStrategy.EXHAUSTIVE,
    **more: Any,
) -> Tuner:
    return Tuner(model, runner, database, strategy=strategy, clock=runner.clock, **more)


@pytest.mark.parametrize("strategy", [SearchStrategy.EXHAUSTIVE, SearchStrategy.RANDOM])
def test_the_best_of_all_is_found_kept_and_used(
    model: SplitModel, database: Database, strategy: SearchStrategy
) -> None:
    runner, reports = Simulated(), list[Progress]()
    network, pipeline = tuner(model, runner, database, strategy, report=reports.append).tune(10_000)
    assert network is not None
    assert pipeline is not None
    assert (network.config["convolutions"], network.config["threads"]) == ("channels_last", 2)
    assert (pipeline.config["batch_size"], pipeline.config["head_threads"]) == (16, 1)
    assert pipeline.task["network"] == network.config
    counts = {stage: sum(asked == stage for asked, _ in runner.asked) for stage in (NETWORK, PIPELINE)}
    assert counts == {NETWORK: 12, PIPELINE: len(pipeline_space(model, CORES))}
    assert reports[-1].num_trials == reports[-1].space_size == counts[PIPELINE]
    assert reports[-1].best == pipeline
    assert reports[-1].default is not None

    found = find_best_known(model, database)
    assert (found.network, found.pipeline) == (network, pipeline)
    assert found.execution_config.convolutions is Convolutions.CHANNELS_LAST
    assert found.head_threads == 1
    assert "tuned: network compiler none, convolutions channels_last" in str(found)
    filled = found.fill_in(StageSettings(batch_size=0, batch_timeout_s=0.05))
    assert (filled.batch_size, filled.batch_timeout_s) == (16, 0.0), "no frame waits for 15 others"
    kept = found.fill_in(StageSettings(split_point="input", batch_size=3, memory_policy="pinned"))
    assert (kept.split_point, kept.batch_size, kept.memory_policy) == ("input", 3, "pinned")


def test_nothing_is_measured_twice(model: SplitModel, database: Database) -> None:
    tuner(model, Simulated(), database).tune(10_000)
    again = Simulated()
    tuner(model, again, database).tune(10_000)
    assert not again.asked


def test_tuning_stops_in_time_with_the_best_so_far(model: SplitModel, database: Database) -> None:
    runner = Simulated()
    network, pipeline = tuner(model, runner, database).tune(20.0)
    assert runner.now <= 21.0
    assert network is not None
    assert pipeline is not None
    assert max(runner.limits) <= 20.0


def test_an_interruption_keeps_what_was_measured(model: SplitModel, database: Database) -> None:
    runner = Simulated()

    def stop(progress: Progress) -> None:
        if progress.num_trials == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuner(model, runner, database, report=stop).tune(100.0)
    assert len(database.records()) == 3
    assert find_best_known(model, database).network is not None


def test_failed_and_uncertain_trials_are_kept_but_not_used(model: SplitModel, database: Database) -> None:
    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        if stage == NETWORK and config["convolutions"] == "channels_last":
            return TrialOutcome((), "It crashed: its process ended with SIGSEGV.")
        if stage == NETWORK and config["convolutions"] == CONTIGUOUS:
            return TrialOutcome((1e-3, 9.0, 1e-3), None, {"uncertain": True})
        return None

    network, _ = tuner(model, Simulated(rule), database).tune(10_000)
    assert network is not None
    assert network.config["convolutions"] == PACKED
    records = [record for record in database.records() if record.task["stage"] == NETWORK]
    assert sum(record.error is not None for record in records) == 4
    assert sum(record.uncertain for record in records) == 4 * MAX_REPEATS, "they would be the best"


def test_uncertain_best_is_measured_again(model: SplitModel, database: Database) -> None:
    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        if stage != NETWORK:
            return None
        first = runner.asked.count((stage, dict(config))) == 1
        if (config["convolutions"], config["threads"]) == ("channels_last", 2):
            return TrialOutcome((0.1,), None, {"uncertain": True} if first else {})
        return TrialOutcome((0.5,), None, {"uncertain": True}) if config["convolutions"] == CONTIGUOUS else None

    runner = Simulated(rule)
    network, _ = tuner(model, runner, database).tune(10_000)
    assert network is not None
    assert (network.config["convolutions"], network.config["threads"]) == ("channels_last", 2)
    doubted = [record for record in database.records() if record.config.get("convolutions") == CONTIGUOUS]
    assert len([record for record in doubted if record.task["stage"] == NETWORK]) == 4, "those cannot be the best"


def test_trial_with_too_little_time_is_repeated(model: SplitModel, database: Database) -> None:
    late = Simulated(lambda stage, config: TrialOutcome((), "It did not finish within 2 s.", {"limit_s": 2.0}))
    end = 4.0
    tuner(model, late, database).tune_network(end)
    assert len(late.asked) >= 3
    again = Simulated()
    best = tuner(model, again, database).tune_network(1000.0)
    assert best is not None
    assert len([1 for stage, _ in again.asked if stage == NETWORK]) == 12


def test_segments_with_too_little_time_are_tried_again(model: SplitModel, database: Database) -> None:
    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        return TrialOutcome((), "It did not finish within 10 s.", {"limit_s": 10.0}) if stage == SEGMENTS else None

    late = Simulated(rule)
    tuner(model, late, database).tune_network(15.0)
    limits = [limit for (stage, _), limit in zip(late.asked, late.limits, strict=True) if stage == SEGMENTS]
    assert len(limits) == 3
    assert min(limits) >= len(model.split_points) - 1, "each piece may take a second to compile"
    tuner(model, late, database).tune_network(late.now + 3.0)
    assert len(late.asked) == 12 + 3, "there is no more time now"
    again = Simulated()
    tuner(model, again, database).tune_network(1000.0)
    assert [stage for stage, _ in again.asked] == [SEGMENTS] * 3
    tuner(model, again, database).tune_network(3000.0)
    assert len(again.asked) == 3, "what fails otherwise fails again"


def test_segments_are_left_out_when_time_is_over(model: SplitModel, database: Database) -> None:
    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        if stage != SEGMENTS:
            return None
        runner.now += 1000.0
        count = len(model.split_points) - 1
        times = [{"costs": [1.0], "uncertain": False}] * count
        return TrialOutcome((), None, {WORK: times, CONVERSION: times, LAYOUTS: ["any"] * count})

    runner = Simulated(rule)
    tuner(model, runner, database).tune_network(100.0)
    kinds = [config["convolutions"] for stage, config in runner.asked if stage == SEGMENTS]
    assert kinds == [PACKED]
    assert min(runner.limits) >= tune_module.MIN_TRIAL_S


NUM_TURNS = 25


def segments_that_mix(model: SplitModel, *, share: float, spread: float = 0.01) -> Callable[..., TrialOutcome | None]:
    """Trials in which the last segment is best contiguous, the others packed, and a chain takes ``share`` as long."""
    count = len(model.split_points) - 1

    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        if stage == SEGMENTS:
            is_contiguous = config["convolutions"] == CONTIGUOUS
            costs = [0.1 if (index == count - 1) == is_contiguous else 1.0 for index in range(count)]
            work = [{"costs": [cost], "uncertain": False} for cost in costs]
            conversion = [{"costs": [0.01], "uncertain": False}] * count
            layouts = ["contiguous" if is_contiguous else "channels_last"] * count
            return TrialOutcome((), None, {WORK: work, CONVERSION: conversion, LAYOUTS: layouts})
        if stage == CHAIN:
            shares = [share + spread * (turn % 5 - 2) for turn in range(NUM_TURNS)]
            return TrialOutcome(
                tuple(5.0 * each for each in shares), None, {UNIFORM: [5.0] * NUM_TURNS, "difference": 0.0}
            )
        return None

    return rule


def test_a_chain_that_is_faster_as_a_whole_is_used(model: SplitModel, database: Database) -> None:
    rule, said = segments_that_mix(model, share=0.9), list[str]()
    network, _ = tuner(model, Simulated(rule), database, say=said.append).tune(10_000)
    assert network is not None
    last = model.split_points[-2].name
    assert network.config["segments"] == [[PACKED, last], [CONTIGUOUS, "output"]]
    assert network.median_s == pytest.approx(0.9 * 0.5), "its share of the uniform form's recorded time"
    assert said == [
        f"The chain packed up to {last}, contiguous up to output is used: it takes 0.900 (0.890 to 0.910, 25 turns) "
        "of the best uniform form's time."
    ]
    found = find_best_known(model, database)
    assert found.execution_config.segments == ((Convolutions.PACKED, last), (Convolutions.CONTIGUOUS, "output"))
    spec = ModelSpec("shapes", weights="none", device="cpu", execution_config=found.execution_config)
    assert partitions_of(load_model(spec), "output")
    assert all(objection_of(record) is None for record in database.records()), "they may be imported elsewhere"
    again = Simulated(rule)
    assert tuner(model, again, database).tune(10_000)[0] == network
    assert not again.asked


@pytest.mark.parametrize(("share", "spread"), [(1.05, 0.01), (0.99, 0.02), (1.0, 0.0)])
def test_a_chain_that_is_not_clearly_faster_is_not_used(
    model: SplitModel, database: Database, share: float, spread: float
) -> None:
    rule, said = segments_that_mix(model, share=share, spread=spread), list[str]()
    network, _ = tuner(model, Simulated(rule), database, say=said.append).tune(10_000)
    assert network is not None
    assert "segments" not in network.config
    assert find_best_known(model, database).execution_config.segments == ()
    assert len(said) == 1
    assert "contiguous up to output is not used: it takes" in said[0]
    again = Simulated(rule)
    tuner(model, again, database).tune(10_000)
    assert not again.asked, "what was measured is not measured again"


def test_a_chain_that_never_took_turns_is_not_used(model: SplitModel, database: Database) -> None:
    tuner(model, Simulated(), database).tune(10_000)
    key, task = Key.here("cpu"), network_task(model, 1)
    best = find_best_known(model, database).network
    assert best is not None
    chain = {**best.config, "segments": [[PACKED, model.split_points[1].name], [CONTIGUOUS, "output"]]}
    database.add([key.record(task, chain, (1e-6,), time=0.0)])  # as versions before this one kept it
    assert find_best_known(model, database).network == best


def test_uncertain_times_do_not_decide_about_segments(model: SplitModel, database: Database) -> None:
    mixing = segments_that_mix(model, share=0.9)

    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        outcome = mixing(stage, config)
        if stage == SEGMENTS and outcome is not None and config["convolutions"] == CONTIGUOUS:
            last = {"costs": [0.1], "uncertain": True}  # the only one in which this kind is better
            return TrialOutcome((), None, {**outcome.facts, WORK: [*outcome.facts[WORK][:-1], last]})
        return outcome

    said = list[str]()
    runner = Simulated(rule)
    tuner(model, runner, database, say=said.append).tune_network(10_000)
    assert said == ["No chain of segments is tried. All segments add up to the least time with convolutions packed."]
    assert CHAIN not in {stage for stage, _ in runner.asked}
    records = [record for record in database.records() if record.task["stage"] == SEGMENTS]
    assert sum(record.uncertain for record in records) == 1


def test_segments_of_which_nothing_is_certain_make_no_chain(model: SplitModel, database: Database) -> None:
    count = len(model.split_points) - 1

    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        times = [{"costs": [1.0], "uncertain": index == 1} for index in range(count)]
        facts = {WORK: times, CONVERSION: times, LAYOUTS: ["any"] * count}
        return TrialOutcome((), None, facts) if stage == SEGMENTS else None

    said = list[str]()
    tuner(model, Simulated(rule), database, say=said.append).tune_network(10_000)
    second = model.split_points[2].name
    assert said == [f"No chain of segments is tried. The times of 1 of {count} segments are uncertain, first {second}."]


def test_pipeline_is_tuned_for_each_allowed_precision(model: SplitModel, database: Database) -> None:
    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome | None:
        return TrialOutcome(({"fp32": 2.0, "bf16": 1.0}[config["precision"]],)) if stage == NETWORK else None

    tuner(model, Simulated(rule), database, precisions=(Precision.FP32, Precision.BF16)).tune(60.0)
    for precision in (Precision.FP32, Precision.BF16):
        found = find_best_known(model, database, precision)
        assert found.network is not None
        assert found.pipeline is not None
        assert found.pipeline.task["network"] == found.network.config
        assert found.network.config["precision"] == precision.value
        assert found.execution_config.precision is precision


def test_without_records_the_defaults_are_used(model: SplitModel, database: Database) -> None:
    found = find_best_known(model, database)
    assert found.execution_config == ExecutionConfig()
    assert found.head_threads == 0
    assert found.with_tuned_threads(model, StageSettings()) is model
    wanted = StageSettings()
    assert found.fill_in(wanted) == wanted
    assert "nothing was measured" in str(found)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"convolutions": "winograd"}, "'convolutions' cannot be 'winograd'"),
        ({"shell": "rm"}, "no knob 'shell'"),
        ({"segments": [[PACKED, "nowhere"]]}, "'segments' cannot be"),
        ({"segments": [["__import__", "output"]]}, "'segments' cannot be"),
        ({"segments": "output"}, "'segments' cannot be"),
        ({"segments": [[PACKED, "output"], [CONTIGUOUS, "neck"]]}, "'segments' cannot be"),
        ({"segments": [[PACKED, "input"]]}, "they end at split points in order"),
    ],
)
def test_records_outside_the_space_are_not_used(
    model: SplitModel, database: Database, change: dict[str, Any], sentence: str
) -> None:
    space = network_space(CORES, compilers=False)
    config = {**space.default, **change}
    assert sentence in str(objection_to(config, space, model))
    key = Key.here("cpu")
    task = network_task(model, 1)
    database.add([Record(key.target, key.versions_for(task), task, config, (1e-6,))])
    assert find_best_known(model, database).network is None


def test_every_kind_of_task_has_a_meaning() -> None:
    kinds = {
        NETWORK,
        SEGMENTS,
        PIPELINE,
        EXECUTION,
        "split_points",
        "operators",
        "memory_cost",
        *OPERATORS,
        *SCHEDULES,
    }
    assert kinds == set(MEANINGS)


def test_strange_tasks_do_no_harm(model: SplitModel, database: Database) -> None:
    key, config = Key.here("cpu"), dict(network_space(CORES).default)
    tasks = [{**network_task(model, 1), "shapes": shapes} for shapes in ([], 3, [[]], [["1"]], [[0, 3]], None)]
    tasks.append({**pipeline_task(model, config), "network": 3})
    database.add([Record(key.target, key.versions_for(task), task, config, (1e-6,)) for task in tasks])
    found = find_best_known(model, database)
    assert (found.network, found.pipeline) == (None, None)


def test_measurements_of_other_models_guide_the_first_trials(
    model: SplitModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = load_model(ModelSpec("squeezenet1_0", "none", "cpu"))
    tuner(other, Simulated(), database).tune_network(10_000)
    runner = Simulated()
    tuner(model, runner, database, SearchStrategy.GUIDED).tune_network(5.0)
    assert runner.asked[0][1] == network_space(CORES).default
    best = runner.asked[1][1]
    assert (best["convolutions"], best["threads"]) == ("channels_last", 2)
    records = [record for record in database.records() if record.task["stage"] == NETWORK]
    assert all(math.isfinite(value) for record in records for value in record.facts["traits"].values())


COSTS = {"torch": 3.0, "onnxruntime": 2.0, "openvino": 2.2}


def by_engine(
    alone: Mapping[str, float | str], turns: Mapping[str, Sequence[float]]
) -> Callable[[str, Mapping[str, Any]], TrialOutcome]:
    """Returns a rule for engines that cost so much alone, or have that error, and so much in turns."""

    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome:
        if stage == RIVALS:
            return TrialOutcome((), None, {TURNS: dict(turns)})
        assert stage == RIVAL
        cost = alone[config["engine"]]
        return TrialOutcome((), cost) if isinstance(cost, str) else TrialOutcome((cost,), None, {"difference": 1e-6})

    return rule


def test_engines_are_compared_once_and_the_fastest_is_used(
    model: SplitModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tune", "best_known", "engine_choice"):
        monkeypatch.setattr(f"split_infer_ros.autotuning.{module}.engines_for", lambda model, precision: tuple(COSTS))
    rule = by_engine({**COSTS, "openvino": "RuntimeError: no such operator"}, {"torch": [3.0], "onnxruntime": [2.0]})
    runner, lines = Simulated(rule), list[str]()

    @contextmanager
    def open_runner(spec: ModelSpec) -> Iterator[Simulated]:
        assert spec.name == "shapes"
        yield runner

    def compare(precision: Precision) -> None:
        compare_engines_once(
            model,
            ModelSpec("shapes", "none", "cpu"),
            database,
            precision=precision,
            batch_size=1,
            say=lines.append,
            open_runner=open_runner,
        )

    for _ in range(2):
        compare(Precision.FP32)
    tried = ["openvino", "onnxruntime", "torch"]
    assert [config.get("engine") for _, config in runner.asked] == [*tried, None]
    before, after = lines
    assert "torch, onnxruntime, openvino for shapes in fp32, once on this machine" in before
    assert "onnxruntime 2000.0 ms; torch 3000.0 ms; openvino is not used (no such operator)" in after
    assert find_best_known(model, database).execution_config.engine is Engine.ONNXRUNTIME
    assert find_best_known(model, database, engines=("torch",)).execution_config.engine is Engine.TORCH
    assert find_best_known(model, database, Precision.BF16).network is None, "results of precisions never mix"
    compare(Precision.BF16)
    assert [config["precision"] for stage, config in runner.asked if stage == RIVAL] == ["fp32"] * 3 + ["bf16"] * 3
    assert find_best_known(model, database, Precision.BF16).execution_config.precision is Precision.BF16
    assert find_best_known(model, database).execution_config.precision is Precision.FP32


def costs_of(model: SplitModel, runner: Simulated, database: Database, end: float) -> dict[str, float]:
    records = tuner(model, runner, database, engines=tuple(COSTS)).compare_engines(end)
    return {str(record.config["engine"]): record.median_s for record in records}


def test_turns_decide_between_engines(model: SplitModel, database: Database) -> None:
    turns = {"torch": [3.1, 3.2, 3.3], "onnxruntime": [2.3, 2.4, 2.5], "openvino": [2.0, 2.1, 2.2]}
    runner = Simulated(by_engine(COSTS, turns))
    assert costs_of(model, runner, database, 60.0) == {"torch": 3.2, "onnxruntime": 2.4, "openvino": 2.1}
    assert [stage for stage, _ in runner.asked] == [RIVAL, RIVAL, RIVAL, RIVALS]


MICRO = {"0": [2.1], "1": [1.9, 2.0, 2.1], "2": [2.5], "4": [2.6]}  # by micro-batch, in turns


@pytest.mark.parametrize(
    ("turns", "end", "best", "tried"),
    [
        (MICRO, 60.0, ("onnxruntime", 1), [0, 1, 2, 4]),
        ({**MICRO, "1": [2.15]}, 60.0, ("onnxruntime", 0), [0, 1, 2, 4]),
        (MICRO, 4.0, ("onnxruntime", 0), [0]),
    ],
    ids=["one image is faster", "the whole batch is faster", "time runs out"],
)
def test_fastest_engine_tries_micro_batches(
    model: SplitModel,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    turns: Mapping[str, Sequence[float]],
    end: float,
    best: tuple[str, int],
    tried: list[int],
) -> None:
    monkeypatch.setattr("split_infer_ros.autotuning.best_known.engines_for", lambda model, precision: tuple(COSTS))

    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome:
        if stage == RIVAL:
            return TrialOutcome((COSTS[config["engine"]],))
        is_second = any(each.get("micro_batch") for _, each in runner.asked)
        return TrialOutcome((), None, {TURNS: dict(turns) if is_second else {name: [COSTS[name]] for name in COSTS}})

    runner = Simulated(rule)
    tuner(model, runner, database, batch_size=8, engines=tuple(COSTS)).compare_engines(end)
    rivals = [(config["engine"], config["micro_batch"]) for stage, config in runner.asked if stage == RIVAL]
    assert rivals[-len(tried) :] == [(best[0], size) for size in tried]
    config = find_best_known(model, database, batch_size=8).execution_config
    assert (config.engine.value, config.micro_batch) == best


@pytest.mark.parametrize("turns", [{}, {"torch": [3.1], "openvino": [9.9]}], ids=["too large", "not all are there"])
def test_times_alone_decide_where_there_are_no_turns(
    model: SplitModel, database: Database, turns: Mapping[str, Sequence[float]]
) -> None:
    runner = Simulated(by_engine(COSTS, turns))
    assert costs_of(model, runner, database, 60.0) == COSTS


def test_no_turns_are_taken_that_would_last_too_long(model: SplitModel, database: Database) -> None:
    runner = Simulated(by_engine(COSTS, {engine: [1.0] for engine in COSTS}))
    assert costs_of(model, runner, database, 17.0) == COSTS, "14.4 s, of which 14 are left"
    assert RIVALS not in [stage for stage, _ in runner.asked]


@pytest.mark.parametrize(
    ("facts", "tried"), [({"limit_s": 9.0}, ["openvino"]), ({}, ["openvino", "onnxruntime", "torch"])]
)
def test_lost_process_has_no_turns(
    model: SplitModel, database: Database, facts: Mapping[str, Any], tried: Sequence[str]
) -> None:
    """A crash is one engine's fault. If time ran out, the next engine would have no more."""

    def rule(stage: str, config: Mapping[str, Any]) -> TrialOutcome:
        if config["engine"] == "openvino":
            return TrialOutcome((), "It ended.", facts, is_process_gone=True)
        return TrialOutcome((1.0,))

    runner = Simulated(rule)
    tuner(model, runner, database, engines=tuple(COSTS)).compare_engines(60.0)
    assert [(stage, config["engine"]) for stage, config in runner.asked] == [(RIVAL, engine) for engine in tried]


def test_comparison_of_engines_ends_in_time(model: SplitModel, database: Database) -> None:
    runner = Simulated()
    records = tuner(model, runner, database, engines=("torch", "openvino", "onnxruntime")).compare_engines(1.5)
    assert [record.config["engine"] for record in records] == ["openvino", "onnxruntime"]
