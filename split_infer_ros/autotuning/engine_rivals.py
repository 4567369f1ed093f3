"""Finds the engines that might run a served model faster. Each is first tried in a process of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.engine_choice import describe_comparison, measured_engines
from split_infer_ros.autotuning.engine_contest import EngineContest
from split_infer_ros.autotuning.model_features import model_features
from split_infer_ros.autotuning.spaces import SPLIT_POINT, network_space
from split_infer_ros.autotuning.tasks import network_task
from split_infer_ros.autotuning.trial_process import TrialProcess, TrialRunner
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.turns import CLEARLY_SLOWER, Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.telemetry.machine import num_cores

MAX_PROCESSOR_S = 120.0  # the most processor time for the trials of a model
MAX_TRIAL_S = 600.0  # a trial waits while frames take all cores
NO_FASTER = 0.999  # the highest gain of an engine that was taken back; rounding must not make it the fastest
MAX_TRIES = 3  # a contest that others ended is repeated, but not for ever


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


class EngineRivals:
    """Proposes the engines of a model that were not compared on this machine yet. It is a ``Rivals``.

    An engine that fails, whose results differ, or that is clearly slower in a trial is not proposed. What was found is
    kept in the database, like the results of ``tune``.

    Args:
        spec: the model spec, with the device on which the model runs.
        database: keeps the records.
        batch_size: images per batch of a trial and of its records, whatever size live batches have.
        open_runner: makes what runs the trials of a spec.
    """

    def __init__(
        self,
        spec: ModelSpec,
        database: Database,
        batch_size: int = 1,
        open_runner: Callable[[ModelSpec], BackgroundRunner] = _background,
    ) -> None:
        self._spec = spec
        self._database = database
        self._batch_size = batch_size
        self._open_runner = open_runner
        self._runner: BackgroundRunner | None = None
        self._settled: set[str] = set()
        self._tries: dict[str, int] = {}
        self._latest = ""  # the engine that was proposed last
        self._records: Sequence[Record] = ()  # of its trial: the present engine's and its own
        self._spent_before_s = 0.0
        self._found: list[str] = []

    @property
    def summary(self) -> str:
        """What was tried, what it gained, what is left and what it cost, in words."""
        return "; ".join(self._found)

    def next(self, model: SplitModel, split_point: str, is_over: Callable[[], bool]) -> Rival | None:
        """Returns the next engine that may be faster; see ``Rivals.next``.

        An engine that was measured meanwhile, for another model of this network or by another node, needs no trial.
        """
        known = self._known(model)
        if known is not None:
            return known
        present, precision = model.execution_config.engine_text, model.precision
        engines = engines_for(model, precision)
        measured = measured_engines(model, self._database, precision, self._batch_size)
        left = [name for name in engines if name not in {present, *measured, *self._settled}]
        space = network_space(num_cores(), (precision,), model.device.type, compilers=False, engines=engines)
        for name in left:
            if is_over() or self._spent_s > MAX_PROCESSOR_S:
                break
            config: Config = {**space.default, "engine": name}
            configs = {present: {**space.default, "engine": present}, name: config}
            records = self._tried(configs, model, split_point, is_over)
            if is_over():
                break
            rival = self._judged(name, records)
            if rival is not None:
                return rival
        if (self._runner is not None or self._spent_before_s) and not is_over():
            self._found.append(f"{self._spent_s:.0f} s of processor time")
        return None

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest engine, if it comes from a trial.

        One that was taken back is recorded as no faster, because later starts take the fastest engine.
        """
        if self._records:
            before, rival = self._records
            gain = verdict.gain if verdict.rival_wins else min(NO_FASTER, verdict.gain)
            faster = before.median_s / (gain * rival.median_s)
            self._keep([before, replace(rival, costs=tuple(cost * faster for cost in rival.costs))])
        self._note(self._latest, f"{self._latest} is {verdict} on live frames")

    def refuse(self, reason: str) -> None:
        """Notes that the latest engine cannot serve."""
        self._note(self._latest, f"{self._latest} is not used ({reason.rstrip('.')})")

    def interrupt(self) -> None:
        """Ends a trial that is under way, from any thread."""
        runner = self._runner
        if runner is not None:
            runner.interrupt()

    def close(self) -> None:
        """Ends the process of the trials, if there is one. Another one starts when it is needed."""
        self._spent_before_s = self._spent_s
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    @property
    def _spent_s(self) -> float:
        return self._spent_before_s + (0.0 if self._runner is None else self._runner.processor_s)

    def _known(self, model: SplitModel) -> Rival | None:
        """Returns the fastest engine that was measured, as a rival of a slower one."""
        best = find_best_known(model, self._database, model.precision, self._batch_size).network
        if best is None:
            return None
        config = ExecutionConfig.from_json(best.config)
        if config.engine_text in {model.execution_config.engine_text, *self._settled}:
            return None
        return self._rival(config)

    def _tried(
        self, configs: Mapping[str, Config], model: SplitModel, split_point: str, is_over: Callable[[], bool]
    ) -> list[Record]:
        """Returns what a trial shows about two engines, in turns."""

        def now() -> float:
            return math.inf if is_over() else time.monotonic()  # no further trial begins once the search is over

        if self._runner is None:
            self._runner = self._open_runner(self._spec)
        task, key = network_task(model, self._batch_size), Key.here(str(model.device))
        about = {"batch_size": self._batch_size, SPLIT_POINT: split_point}
        contest = EngineContest(self._runner, key, task, about, model_features(model), now)
        return contest.records(configs, time.monotonic() + MAX_TRIAL_S)

    def _judged(self, name: str, records: list[Record]) -> Rival | None:
        """Returns the second engine of a trial as a rival of the first one, unless it fails or is clearly slower."""
        if len(records) < 2:
            self._note(name, f"{name} could not be compared")
            return None
        before, rival = records
        has_failed = before.error is not None or rival.error is not None
        if has_failed or rival.median_s > CLEARLY_SLOWER * before.median_s:
            self._keep(records)
            self._note(name, f"{describe_comparison(records)} in a trial")
            return None
        return self._rival(ExecutionConfig.from_json(rival.config), records)

    def _rival(self, config: ExecutionConfig, records: Sequence[Record] = ()) -> Rival | None:
        """Returns a rival; None if it was proposed often enough, or does not load."""
        name = self._latest = config.engine_text
        self._records = records
        self._tries[name] = self._tries.get(name, 0) + 1
        if self._tries[name] > MAX_TRIES:
            self._note(name, f"{name} could not be compared")
            return None
        try:
            return Rival(name, load_model(replace(self._spec, execution_config=config)))
        except ConfigurationError as error:
            self.refuse(str(error))
            return None

    def _keep(self, records: list[Record]) -> None:
        self._database.keep(records, "the comparison of engines is")

    def _note(self, name: str, found: str) -> None:
        self._settled.add(name)
        self._found.append(found)
