"""Which engines may replace the present one: new ones that run, agree, and are not clearly slower."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from trial_runners import StandInRunner

from split_infer_ros.autotuning import best_known, engine_rivals, spaces
from split_infer_ros.autotuning.background_trials import MAX_PROCESSOR_S, BackgroundTrials
from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.engine_choice import name_of
from split_infer_ros.autotuning.engine_rivals import EngineRivals
from split_infer_ros.autotuning.spaces import RIVAL, RIVALS, TURNS
from split_infer_ros.autotuning.trial_process import TrialOutcome
from split_infer_ros.engines.engine import Engine
from split_infer_ros.measurements.database import Database
from split_infer_ros.runtime import num_threads
from split_infer_ros.server.improving.measures import BackboneMeasure, CoolMeasure
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.turns import CLEARLY_SLOWER, Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.heat import Processor

pytest.importorskip("onnxruntime")
pytest.importorskip("openvino")
SPEC = ModelSpec("shapes", device="cpu", on_torch=False)
ENGINES = ("onnxruntime", "openvino")
CRASH = TrialOutcome((), "It crashed: its process ended with SIGSEGV.", is_process_gone=True)


class Trials(StandInRunner):
    """Runs trials that take a given time for each configuration, by its name.

    Attributes:
        asked: the configurations that were tried.
    """

    def __init__(self, costs: Mapping[str, float | str | TrialOutcome], batch_size: int = 1) -> None:
        super().__init__(SPEC)
        self.costs = costs
        self.asked: list[str] = []
        self._batch_size = batch_size

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        assert about["batch_size"] == self._batch_size
        if stage == RIVALS:
            turns = {name: [self.costs[name_of(each)]] * 3 for name, each in about[RIVALS].items()}
            return TrialOutcome((), None, {TURNS: turns})
        assert stage == RIVAL
        self.asked.append(name_of(config))
        cost = self.costs[name_of(config)]
        if isinstance(cost, TrialOutcome):
            return cost
        return TrialOutcome((), cost) if isinstance(cost, str) else TrialOutcome((cost,), None, {"difference": 1e-6})


@pytest.fixture(autouse=True)
def two_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has two engines for ONNX files, and two cores, whatever it has."""
    monkeypatch.setattr(engine_rivals, "engines_for", lambda model, precision: ENGINES)
    has_cores(monkeypatch, 2)


def has_cores(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    for module in (engine_rivals, best_known, spaces):
        monkeypatch.setattr(module, "num_cores", lambda: count)
    monkeypatch.setattr(num_threads, "max_threads", lambda: count)


@pytest.fixture
def model() -> SplitModel:
    return load_model(SPEC)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


def opened(trials: Trials, database: Database, batch_size: int = 1) -> EngineRivals:
    return EngineRivals(BackgroundTrials(SPEC, batch_size, open_runner=trials.open), database)


def proposed(rivals: EngineRivals, model: SplitModel) -> Rival | None:
    return rivals.next(model, "output", lambda: False, lambda: None)


def costs_of(database: Database) -> dict[str, Sequence[float]]:
    return {record.config["engine"]: record.costs for record in database.records()}


def test_an_engine_is_proposed_until_turns_on_live_frames_settle_it(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 2.0, "openvino": 1.9})
    rivals = opened(trials, database)
    for _ in range(2):  # somebody changed settings in the first contest
        rival = proposed(rivals, model)
        assert rival is not None
        assert (rival.name, rival.model.execution_config.engine) == ("openvino", Engine.OPENVINO)
        assert rival.model.network is model.network, "they share the weights"
    rivals.settle(Verdict(1.25, 1.2, 1.3))
    trials.processor_s = 12.4
    assert proposed(rivals, model) is None
    rivals.close()
    assert not trials.is_running
    assert rivals.summary == ("openvino is 1.25 times as fast (1.20 to 1.30) on live frames; 12 s of processor time")
    assert costs_of(database) == {"onnxruntime": (2.0,) * 3, "openvino": (pytest.approx(1.6),) * 3}
    assert find_best_known(model, database).execution_config.engine is Engine.OPENVINO


def test_what_was_measured_before_is_not_tried_again(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 1.0, "openvino": 1.0})
    rivals = opened(trials, database)
    assert proposed(rivals, model) is not None
    rivals.settle(Verdict(0.9, 0.8, 1.0))
    assert find_best_known(model, database).execution_config.engine is Engine.ONNXRUNTIME
    later = opened(Trials({}), database)
    assert proposed(later, model) is None
    assert later.summary == ""


def test_an_engine_that_was_measured_for_another_model_of_the_network_needs_no_trial(
    model: SplitModel, database: Database
) -> None:
    """Two models of one network are served, and both began before anything was measured."""
    trials = Trials({"onnxruntime": 1.0, "openvino": 0.5})
    first = opened(trials, database)
    second = opened(Trials({}), database)
    assert proposed(first, model) is not None
    first.settle(Verdict(2.0, 1.9, 2.1))
    kept = costs_of(database)
    rival = proposed(second, model)
    assert rival is not None
    assert rival.name == "openvino"
    second.settle(Verdict(0.7, 0.6, 0.8))
    assert proposed(second, model) is None
    assert second.summary == "openvino is 0.70 times as fast (0.60 to 0.80) on live frames"
    assert costs_of(database) == kept, "the times of a trial are not this model's"


def test_an_engine_that_was_taken_back_is_not_taken_at_the_next_start(model: SplitModel, database: Database) -> None:
    rivals = opened(Trials({"onnxruntime": 1.0, "openvino": 0.9}), database)
    assert proposed(rivals, model) is not None
    rivals.settle(Verdict(1.04, 0.98, 1.1))
    assert find_best_known(model, database).execution_config.engine is Engine.ONNXRUNTIME


def test_closed_trials_count_and_may_begin_again(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 1.0, "openvino": 1.0})
    rivals = opened(trials, database)
    assert proposed(rivals, model) is not None
    trials.processor_s = MAX_PROCESSOR_S / 2 + 1
    rivals.close()
    assert not trials.is_running
    assert proposed(rivals, model) is not None
    rivals.close()
    assert proposed(rivals, model) is None, "both processes together have taken too much time"


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (1.01 * CLEARLY_SLOWER, "onnxruntime 1000.0 ms; openvino 1313.0 ms in a trial"),
        ("RuntimeError: no such operator", "onnxruntime 1000.0 ms; openvino is not used (no such operator) in a trial"),
        (CRASH, "onnxruntime 1000.0 ms; openvino is not used (its process ended with SIGSEGV) in a trial"),
    ],
    ids=["slower", "fails", "crashes"],
)
def test_an_engine_that_cannot_win_is_not_proposed(
    model: SplitModel, database: Database, cost: float | str | TrialOutcome, words: str
) -> None:
    rivals = opened(Trials({"onnxruntime": 1.0, "openvino": cost}), database)
    assert proposed(rivals, model) is None
    assert rivals.summary == f"{words}; 0 s of processor time"
    assert costs_of(database).keys() == {"onnxruntime", "openvino"}


def test_an_engine_whose_plan_is_refused_is_not_proposed_again(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 1.0, "openvino": 1.0})
    rivals = opened(trials, database)
    assert proposed(rivals, model) is not None
    rivals.refuse("Memory is short.")
    assert proposed(rivals, model) is None
    assert rivals.summary.startswith("openvino is not used (Memory is short)")


def test_a_contest_that_never_ends_is_given_up(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 1.0, "openvino": 1.0})
    rivals = opened(trials, database)
    for _ in range(engine_rivals.MAX_TRIES):
        assert proposed(rivals, model) is not None
    assert proposed(rivals, model) is None
    assert "openvino could not be compared" in rivals.summary


def test_trials_end_when_their_time_is_spent_or_the_node_stops(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 1.0, "openvino": 1.0})
    rivals = opened(trials, database)
    assert rivals.next(model, "output", lambda: True, lambda: None) is None
    assert trials.asked == []
    assert proposed(rivals, model) is not None
    trials.processor_s = MAX_PROCESSOR_S + 1
    assert proposed(rivals, model) is None
    rivals.interrupt()
    assert not trials.is_running


def test_the_engine_that_is_left_runs_with_fewer_threads(
    model: SplitModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread is not tried. What has won is in force at the next start."""
    has_cores(monkeypatch, 8)
    costs = {"onnxruntime": 1.0, "openvino": 2.0, "onnxruntime with 4 threads": 0.9, "onnxruntime with 2 threads": 1.1}
    trials = Trials(costs)
    rivals = opened(trials, database)
    rival = proposed(rivals, model)
    assert rival is not None
    assert (rival.name, rival.model.execution_config.threads) == ("onnxruntime with 4 threads", 4)
    rivals.settle(Verdict(1.2, 1.1, 1.3))
    last = proposed(rivals, rival.model)
    assert last is not None
    assert last.name == "onnxruntime with 2 threads"
    rivals.settle(Verdict(0.8, 0.7, 0.9))
    assert proposed(rivals, rival.model) is None
    assert list(dict.fromkeys(trials.asked)) == list(costs)
    assert find_best_known(model, database).execution_config == rival.model.execution_config
    assert proposed(opened(Trials({}), database), rival.model) is None


def test_a_winner_on_a_busier_machine_is_still_the_best(
    model: SplitModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trials of a search are minutes apart. What both have is the present configuration."""
    has_cores(monkeypatch, 4)
    trials = Trials({"onnxruntime": 1.0, "openvino": 1.1, "onnxruntime with 2 threads": 2.0})
    rivals = opened(trials, database)
    assert proposed(rivals, model) is not None
    rivals.settle(Verdict(0.9, 0.8, 0.95))
    trials.costs = {**trials.costs, "onnxruntime": 2.0}
    rival = proposed(rivals, model)
    assert rival is not None
    rivals.settle(Verdict(1.25, 1.2, 1.3))
    assert costs_of(database)["onnxruntime"] == (pytest.approx(0.8),) * 3
    assert find_best_known(model, database).execution_config == rival.model.execution_config
    assert proposed(rivals, rival.model) is None


def test_large_batches_run_in_micro_batches(
    model: SplitModel, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run on lanes if frames come fast, so fewer threads are not tried."""
    has_cores(monkeypatch, 8)
    names = ["onnxruntime in micro-batches of 1", "onnxruntime in micro-batches of 2"]
    trials = Trials({"onnxruntime": 8.0, "openvino": 20.0, names[0]: 7.0, names[1]: 20.0}, 4)
    rivals = opened(trials, database, batch_size=4)
    rival = proposed(rivals, model)
    assert rival is not None
    assert (rival.name, rival.model.execution_config.micro_batch) == ("onnxruntime in micro-batches of 1", 1)
    rivals.settle(Verdict(1.1, 1.06, 1.2))
    assert proposed(rivals, rival.model) is None
    assert set(trials.asked) == set(trials.costs)


def test_in_heat_what_was_measured_is_proposed_without_trials(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 1.0, "openvino": 1.5})  # clearly slower, so it met no live frame
    rivals = opened(trials, database)
    assert proposed(rivals, model) is None
    kept, asked = costs_of(database), list(trials.asked)
    rivals.again(Processor.CPU)
    rival = proposed(rivals, model)
    assert rival is not None
    assert (rival.name, rival.measure) == ("openvino", CoolMeasure(Processor.CPU))
    rivals.settle(Verdict(1.4, 1.3, 1.5, meaning=rival.measure.meaning))
    assert proposed(rivals, rival.model) is None, "it has just won against the other one"
    assert rivals.summary == "openvino is 1.40 times as sparing of the CPU (1.30 to 1.50) on live frames"
    assert costs_of(database) == kept, "a processor's time says nothing of a model's speed"
    rivals.again(None)
    back = proposed(rivals, rival.model)
    assert back is not None
    assert (back.name, back.measure) == ("onnxruntime", BackboneMeasure())
    assert trials.asked == asked


def test_in_heat_what_takes_much_longer_is_left_out(model: SplitModel, database: Database) -> None:
    rivals = opened(Trials({"onnxruntime": 1.0, "openvino": 2.1}), database)
    assert proposed(rivals, model) is None
    rivals.again(Processor.CPU)
    assert proposed(rivals, model) is None


def test_in_heat_nothing_is_tried_that_was_never_measured(model: SplitModel, database: Database) -> None:
    trials = Trials({"onnxruntime": 1.0, "openvino": 0.5})
    rivals = opened(trials, database)
    rivals.again(Processor.CPU)
    assert proposed(rivals, model) is None
    assert trials.asked == []
    rivals.again(None)
    assert proposed(rivals, model) is not None


def test_in_heat_what_failed_in_its_trial_is_left_out(model: SplitModel, database: Database) -> None:
    rivals = opened(Trials({"onnxruntime": 1.0, "openvino": CRASH}), database)
    assert proposed(rivals, model) is None
    rivals.again(Processor.CPU)
    assert proposed(rivals, model) is None


def test_summaries_do_not_grow_with_each_hot_day(model: SplitModel, database: Database) -> None:
    rivals = opened(Trials({"onnxruntime": 1.0, "openvino": 1.5}), database)
    proposed(rivals, model)
    lengths = set()
    for _ in range(3):
        for hot in (Processor.CPU, None):
            rivals.again(hot)
            while (rival := proposed(rivals, model)) is not None:
                rivals.settle(Verdict(0.9, 0.8, 0.95, meaning=rival.measure.meaning))
        lengths.add(len(rivals.summary))
    assert len(lengths) == 1
