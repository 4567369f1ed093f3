"""Runs trials in a process of their own, so that a crash costs one trial and not the whole search."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.runtime.child_process import ChildError, ChildProcess
from split_infer_ros.runtime.python_child import python_command
from split_infer_ros.split.model_files import files_state, named_files
from split_infer_ros.split.model_spec import ModelSpec

MIN_TRIAL_S = 5.0  # each trial gets as much, however late: after a trial is ended, a new process takes longer to start
MAX_START_S = 180.0  # for the imports and the model's weights
MAX_IDLE_START_S = 900.0  # the same, if frames take most of the time of all cores
WORKER = "split_infer_ros.autotuning.worker"


@dataclass(frozen=True)
class TrialOutcome:
    """The result of a trial.

    Attributes:
        costs: the measured times, in seconds.
        error: a sentence that says why there are no times; None if there are.
        facts: other observations: ``uncertain``, ``difference``, or the ``limit_s`` that a trial exceeded.
        is_process_gone: whether the trial crashed, or was stopped at its limit. The process has then ended, and with it
            the configurations that it had built in earlier trials.
    """

    costs: tuple[float, ...] = ()
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_process_gone: bool = False

    def as_record(self, key: Key, task: Mapping[str, Any], config: Mapping[str, Any], **facts: Any) -> Record:
        """Returns a record of the trial, with the current time.

        Args:
            key: the machine and versions, which the record holds.
            task: the task that was tried.
            config: the configuration that was tried.
            facts: facts that are added to those of the trial.
        """
        return key.record(task, config, self.costs, time=time.time(), error=self.error, facts={**self.facts, **facts})


def is_cut_short(trial: TrialOutcome | Record) -> bool:
    """Returns whether a trial was stopped at its time limit."""
    return "limit_s" in trial.facts


def had_too_little_time(record: Record, limit_s: float) -> bool:
    """Returns whether a trial was stopped at a limit of less than half of ``limit_s`` seconds.

    With the new limit, the trial may then succeed.
    """
    old_limit_s = record.facts.get("limit_s")
    return record.error is not None and isinstance(old_limit_s, (int, float)) and old_limit_s < limit_s / 2


class TrialRunner(Protocol):
    """Runs trials of one model."""

    def start(self) -> None:
        """Gets ready for trials. Without this call, the first trial includes the preparation."""
        ...

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        """Runs one trial: builds a configuration, and times it.

        Args:
            stage: what is timed; see ``Trials.run``.
            config: the configuration.
            about: what else the stage needs, such as ``batch_size``; see ``Trials.run``.
            limit_s: the time limit of the trial, in seconds.
        """
        ...


class TrialProcess:
    """Runs trials of one model, one at a time, in a process that starts at the first trial and after a crash.

    Leaving the context ends the process.

    Args:
        spec: the model and its device. Each trial sets the execution config itself.
        worker: the command that starts the process. None means the package's own.
        gives_way: whether trials leave the cores to all other processes.
    """

    def __init__(self, spec: ModelSpec, worker: Sequence[str] | None = None, gives_way: bool = False) -> None:
        model = {name: getattr(spec, name) for name in ("name", "weights", "device", "allow_user_code", "on_torch")}
        self._files = named_files(spec)
        self._state = files_state(self._files)
        arguments = [json.dumps(model | asdict(spec.onnx_options))]
        max_start_s = MAX_IDLE_START_S if gives_way else MAX_START_S
        command = worker or python_command(WORKER)
        self._process = ChildProcess(command, arguments, max_start_s=max_start_s, gives_way=gives_way)

    def __enter__(self) -> TrialProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the process. A later trial starts another one."""
        self._process.end()

    @property
    def processor_s(self) -> float:
        """Seconds of processor time that trials took so far, as far as the system tells it."""
        return self._process.processor_s

    def interrupt(self) -> None:
        """Ends the process. A trial that is under way fails. Any thread may call this."""
        self._process.kill()

    def start(self) -> None:
        """Starts the process, unless it already runs, and waits until it is ready.

        Raises:
            ConfigurationError: the process cannot be started, or cannot load this model.
        """
        if not self._process.is_running and files_state(self._files) != self._state:  # trials must not mix two models
            raise ConfigurationError("The model cannot be tuned further: one of its files changed; tune it anew.")
        try:
            self._process.start()
            self._process.wait_until_ready()
        except ChildError as error:
            raise ConfigurationError(f"The model cannot be tuned: {error}.") from error

    def run(self, stage: str, config: Mapping[str, Any], about: Mapping[str, Any], limit_s: float) -> TrialOutcome:
        """Runs one trial, with the arguments of ``TrialRunner.run``. After a crash or a hang, the outcome has an error.

        Raises:
            ConfigurationError: the process cannot be started, or cannot load this model.
        """
        self.start()
        request = {"stage": stage, "config": dict(config), "about": dict(about), "limit_s": limit_s}
        answer = self._process.ask(request, limit_s)
        if "late" in answer:
            return TrialOutcome((), f"It did not finish within {limit_s:.0f} s.", {"limit_s": limit_s}, True)
        if "died" in answer:
            error = f"It crashed: its process ended with {answer['died']}."
            return TrialOutcome((), error, is_process_gone=True)
        if "error" in answer:
            return TrialOutcome((), answer["error"])
        facts = {name: value for name, value in answer.items() if name != "costs" and value is not False}
        return TrialOutcome(tuple(answer["costs"]), None, facts)
