"""Stands in for the process of the trials beside a node that serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_infer_ros.autotuning.trial_process import TrialOutcome
from split_infer_ros.split.model_spec import ModelSpec


class StandInRunner:
    """Runs trials of a spec in this process. It is a ``BackgroundRunner``. A subclass says what a trial finds.

    Attributes:
        spec: the spec.
        processor_s: what trials have cost.
        is_running: whether the process was opened and not ended.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.processor_s = 0.0
        self.is_running = False

    def open(self, spec: ModelSpec) -> StandInRunner:
        assert spec == self.spec
        assert not self.is_running
        self.is_running = True
        return self

    def start(self) -> None:
        pass

    def interrupt(self) -> None:
        self.is_running = False

    def close(self) -> None:
        self.is_running = False

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        raise NotImplementedError
