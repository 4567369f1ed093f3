"""The profile of a model that serves is measured in a trial process, and kept like that of the command ``profile``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trial_runners import StandInRunner

from split_infer_ros.autotuning.background_trials import BackgroundTrials
from split_infer_ros.autotuning.profile_trials import ProfileTrials, measure_profile, samples_of
from split_infer_ros.autotuning.spaces import PROFILE
from split_infer_ros.autotuning.trial_process import TrialOutcome, TrialProcess
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.server.profiling.profiler import Effort, Profiler
from split_infer_ros.server.profiling.stored_profile import profile_model
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec

pytest.importorskip("torch")
SPEC = ModelSpec("shapes", "none", "cpu")
MINIMAL = Effort(rounds=1, warm_up=1, batches=2, seconds=0.0, runs=1, repeats=1, max_s=0.0)
CRASH = TrialOutcome((), "It crashed: its process ended with SIGSEGV.", is_process_gone=True)


class Trials(StandInRunner):
    """Measures in this process.

    Attributes:
        asked: the batch sizes that were measured.
        fails_from: from this batch size on, trials crash.
    """

    def __init__(self, model: SplitModel, fails_from: int = 1000) -> None:
        super().__init__(SPEC)
        self.asked: list[int] = []
        self.fails_from = fails_from
        self._model = model

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        assert stage == PROFILE
        assert config == self._model.execution_config.as_json()
        size = about["batch_size"]
        self.asked.append(size)
        if size >= self.fails_from:
            return CRASH
        answer = measure_profile(self._model, size, MINIMAL)
        return TrialOutcome((), None, {name: value for name, value in answer.items() if name != "costs"})


@pytest.fixture(scope="module")
def model() -> SplitModel:
    return load_model(SPEC)


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "tuning.jsonl")


def never() -> bool:
    return False


def test_what_the_database_lacks_is_measured_and_kept(model: SplitModel, database: Database) -> None:
    trials = Trials(model)
    profiles = ProfileTrials(BackgroundTrials(SPEC, open_runner=trials.open), database)
    found = profiles.find(model, [1], never)([1], False)
    assert [point.split_point for point in found.points] == [point.name for point in model.split_points]
    assert profile_model(Profiler(model), [1], database, may_measure=False) == found, "as the command profile reads it"
    assert profiles.find(model, [1, 2], never)([1, 2], False).batch_sizes == (1, 2)
    assert trials.asked == [1, 2]
    profiles.close()
    assert not trials.is_running


def test_batch_sizes_that_cannot_be_measured_are_left_out(model: SplitModel, database: Database) -> None:
    profiles = ProfileTrials(BackgroundTrials(SPEC, open_runner=Trials(model, fails_from=2).open), database)
    assert profiles.find(model, [4, 1, 2], never)([1, 2, 4], False).batch_sizes == (1,)


def test_a_model_that_cannot_be_measured_at_all_is_an_error(model: SplitModel, database: Database) -> None:
    profiles = ProfileTrials(BackgroundTrials(SPEC, open_runner=Trials(model, fails_from=1).open), database)
    with pytest.raises(ConfigurationError, match=r"shapes cannot be measured\. It crashed"):
        profiles.find(model, [1], never)


def test_nothing_is_measured_once_the_search_is_over(model: SplitModel, database: Database) -> None:
    trials = Trials(model)
    profiles = ProfileTrials(BackgroundTrials(SPEC, open_runner=trials.open), database)
    profiles.find(model, [1, 2], lambda: bool(trials.asked))
    assert trials.asked == [1]
    profiles.interrupt()
    assert not trials.is_running


def test_a_process_of_its_own_measures(model: SplitModel, database: Database) -> None:
    trials = BackgroundTrials(
        SPEC, open_runner=TrialProcess
    )  # at its usual priority: a busy machine must not starve it
    try:
        found = ProfileTrials(trials, database).find(model, [1], never)([1], False)
    finally:
        trials.close()
    assert found.batch_sizes == (1,)


def test_samples_survive_the_way_through_an_answer(model: SplitModel) -> None:
    answer = measure_profile(model, 1, MINIMAL)
    samples = samples_of(answer)
    assert [each.split_point for each in samples] == [point.name for point in model.split_points]
    assert all(each.is_complete for each in samples)
