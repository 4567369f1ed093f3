"""Trials of one model in a process that gives way to a node that serves."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from split_infer_ros.autotuning.engine_contest import EngineContest
from split_infer_ros.autotuning.model_features import model_features
from split_infer_ros.autotuning.spaces import SPLIT_POINT, served_config
from split_infer_ros.autotuning.tasks import network_task
from split_infer_ros.autotuning.trial_process import TrialOutcome, TrialProcess, TrialRunner
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.turns import CLEARLY_SLOWER, Verdict
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.heat import Processor

MAX_PROCESSOR_S = 120.0  # the most processor time for the trials of a model
MAX_TRIAL_S = 600.0  # a trial waits while frames take all cores
PRESENT = "present"  # the name of the present configuration in a trial


class BackgroundRunner(TrialRunner, Protocol):
    """Runs trials beside a node that serves."""

    @property
    def processor_s(self) -> float:
        """Seconds of processor time that trials took so far."""
        ...

    def interrupt(self) -> None:
        """Ends the process of the trials. A trial that is under way fails. Any thread may call this."""
        ...

    def close(self) -> None:
        """Ends the process of the trials, and frees what it needed."""
        ...


def _background(spec: ModelSpec) -> BackgroundRunner:
    return TrialProcess(spec, gives_way=True)


class BackgroundTrials:
    """Runs trials of one model beside a node that serves. The process starts with the first trial.

    Args:
        spec: the model spec, with the device on which the model runs.
        batch_size: images per batch of a trial, whatever size live batches have.
        open_runner: makes what runs the trials of a spec.

    Attributes:
        spec, batch_size: the arguments.
    """

    def __init__(
        self,
        spec: ModelSpec,
        batch_size: int = 1,
        open_runner: Callable[[ModelSpec], BackgroundRunner] = _background,
    ) -> None:
        self.spec, self.batch_size = spec, batch_size
        self._open_runner = open_runner
        self._runner: BackgroundRunner | None = None
        self._spent_before_s = self._told_s = 0.0
        self._has_run = False  # since ``cost`` was called last

    @property
    def spent_s(self) -> float:
        """Seconds of processor time that all trials took."""
        return self._spent_before_s + (0.0 if self._runner is None else self._runner.processor_s)

    @property
    def may_go_on(self) -> bool:
        """Whether the trials took less processor time than a model may cost."""
        return self.spent_s < MAX_PROCESSOR_S

    def cost(self) -> str:
        """Returns in words what the trials since the last call have taken; empty if there were none."""
        since_s, self._told_s = self.spent_s - self._told_s, self.spent_s
        has_run, self._has_run = self._has_run, False
        return f"{since_s:.0f} s of processor time" if has_run else ""

    def compare(
        self, configs: Mapping[str, Config], model: SplitModel, split_point: str, is_over: Callable[[], bool]
    ) -> list[Record]:
        """Times configurations of the network in turns with the one of the model that serves. Its record comes first.

        Returns a record for each configuration that was tried.

        Args:
            configs: the configurations, by name.
            model: the model that serves.
            split_point: where it is split.
            is_over: says whether no further trial should begin.

        Raises:
            ConfigurationError: the process cannot be started, or cannot load the model.
        """

        def now() -> float:
            return math.inf if is_over() else time.monotonic()

        task, key = network_task(model, self.batch_size), Key.here(str(model.device))
        about = {"batch_size": self.batch_size, SPLIT_POINT: split_point}
        contest = EngineContest(self._opened(), key, task, about, model_features(model), now)
        return contest.records({PRESENT: served_config(model), **configs}, time.monotonic() + MAX_TRIAL_S)

    def run(self, stage: str, about: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> TrialOutcome:
        """Runs one trial; see ``Trials.run``.

        Raises:
            ConfigurationError: the process cannot be started, or cannot load the model.
        """
        return self._opened().run(stage, config or {}, about, MAX_TRIAL_S)

    def interrupt(self) -> None:
        """Ends a trial that is under way, from any thread."""
        runner = self._runner
        if runner is not None:
            runner.interrupt()

    def close(self) -> None:
        """Ends the process of the trials, if there is one. Another one starts when it is needed."""
        self._spent_before_s = self.spent_s
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _opened(self) -> BackgroundRunner:
        self._has_run = True
        if self._runner is None:
            self._runner = self._open_runner(self.spec)
        return self._runner


class TrialRivals:
    """The base class of rivals that are first tried in a process of their own.

    Args:
        trials: runs the trials.
    """

    def __init__(self, trials: BackgroundTrials) -> None:
        self._trials = trials
        self._found: list[str] = []  # what was found, in words
        self._hot: Processor | None = None  # while it is too hot, no trials run

    @property
    def summary(self) -> str:
        """What was tried, what it gained, what is left and what it cost, in words."""
        return "; ".join(self._found)

    def again(self, hot: Processor | None) -> None:
        """Runs no trials while a processor is too hot. Goes on with them once it has cooled."""
        self._hot = hot

    def interrupt(self) -> None:
        """Ends a trial that is under way, from any thread."""
        self._trials.interrupt()

    def close(self) -> None:
        """Ends the process of the trials, if there is one. Another one starts when it is needed."""
        self._trials.close()

    def _note_cost(self) -> None:
        self._found += filter(None, [self._trials.cost()])


class PendingRivals(TrialRivals):
    """The base class of rivals of which each is proposed until it is settled or refused."""

    def __init__(self, trials: BackgroundTrials) -> None:
        super().__init__(trials)
        self._pending: Rival | None = None  # what was proposed, and is not settled

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest rival."""
        self._pass_on(f"is {verdict} on live frames")

    def refuse(self, reason: str) -> None:
        """Notes that the latest rival cannot serve."""
        self._pass_on(f"is not used ({reason.rstrip('.')})")

    def _pass_on(self, found: str) -> None:
        assert self._pending is not None
        self._found.append(f"{self._pending.name} {found}")
        self._pending = None


def is_clearly_slower(record: Record, present: Record) -> bool:
    """Returns whether a configuration fails, or takes much longer than the present one."""
    failed = record.error is not None or present.error is not None
    return failed or record.median_s > CLEARLY_SLOWER * present.median_s
