"""Trials beside a node that serves give way to it, and their processor time is told once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from trial_runners import StandInRunner

from split_infer_ros.autotuning import background_trials
from split_infer_ros.autotuning.background_trials import MAX_PROCESSOR_S, BackgroundTrials
from split_infer_ros.autotuning.trial_process import TrialOutcome
from split_infer_ros.split.model_spec import ModelSpec

SPEC = ModelSpec("shapes", device="cpu")


class Trials(StandInRunner):
    """Runs trials that take a second of processor time each.

    Attributes:
        interrupted, closed: how often it was told so.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.interrupted = self.closed = 0

    def interrupt(self) -> None:
        self.interrupted += 1

    def close(self) -> None:
        self.closed += 1

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        self.processor_s += 1.0
        return TrialOutcome((), None, {"stage": stage, "config": config, "about": about})


def test_the_process_leaves_the_cores_to_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[bool] = []

    def open_process(spec: ModelSpec, gives_way: bool) -> Trials:
        given.append(gives_way)
        return Trials(spec)

    monkeypatch.setattr(background_trials, "TrialProcess", open_process)
    trials = BackgroundTrials(SPEC)
    assert given == [], "a process starts with the first trial"
    trials.run("quantise", {})
    assert given == [True]


def test_a_trial_gets_its_stage_and_configuration() -> None:
    trials = BackgroundTrials(SPEC, open_runner=Trials)
    assert trials.run("profile", {"batch_size": 2}, {"engine": "torch"}).facts == {
        "stage": "profile",
        "config": {"engine": "torch"},
        "about": {"batch_size": 2},
    }


def test_processor_time_is_counted_over_all_processes_and_told_once() -> None:
    trials = BackgroundTrials(SPEC, open_runner=Trials)
    assert trials.cost() == ""
    for _ in range(2):
        trials.run("quantise", {})
        trials.close()
    assert trials.spent_s == 2.0
    assert trials.cost() == "2 s of processor time"
    assert trials.cost() == ""


def test_trials_end_after_a_limit_of_processor_time() -> None:
    trials = BackgroundTrials(SPEC, open_runner=Trials)
    while trials.may_go_on:
        trials.run("quantise", {})
    assert trials.spent_s == MAX_PROCESSOR_S


def test_a_trial_that_is_under_way_can_be_interrupted() -> None:
    opened: list[Trials] = []

    def open_runner(spec: ModelSpec) -> Trials:
        opened.append(Trials(spec))
        return opened[-1]

    trials = BackgroundTrials(SPEC, open_runner=open_runner)
    trials.interrupt()
    trials.run("quantise", {})
    trials.interrupt()
    trials.close()
    assert [(each.interrupted, each.closed) for each in opened] == [(1, 1)]
