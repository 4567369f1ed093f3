"""Finds the engines that might run a served model faster. Each is first tried in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from split_infer_ros.autotuning.engine_choice import describe_comparison, measured_engines
from split_infer_ros.autotuning.engine_contest import EngineContest
from split_infer_ros.autotuning.model_features import model_features
from split_infer_ros.autotuning.spaces import network_space
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
        batch_size: images per batch of a trial.
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
        self._latest: tuple[Record, Record] | None = None
        self._found: list[str] = []

    @property
    def summary(self) -> str:
        """What was tried, what it gained, what is left and what it cost, in words."""
        return "; ".join(self._found)

    def next(self, model: SplitModel, is_over: Callable[[], bool]) -> Rival | None:
        """Returns the next engine that may be faster; see ``Rivals.next``."""
        present, precision = model.execution_config.engine_text, model.precision
        engines = engines_for(model, precision)
        task, key = network_task(model, self._batch_size), Key.here(str(model.device))
        measured = measured_engines(model, self._database, precision, self._batch_size)
        left = [name for name in engines if name not in {present, *measured, *self._settled}]
        space = network_space(num_cores(), (precision,), model.device.type, compilers=False, engines=engines)
        for name in left:
            if is_over() or self._spent_s > MAX_PROCESSOR_S:
                break
            config: Config = {**space.default, "engine": name}
            configs = {present: {**space.default, "engine": present}, name: config}
            records = self._records(configs, task, key, model)
            if is_over():
                break
            rival = self._judged(name, records)
            if rival is not None:
                return rival
        if self._runner is not None:
            if not is_over():
                self._found.append(f"{self._spent_s:.0f} s of processor time")
            self._runner.close()
            self._runner = None
        return None

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest engine."""
        assert self._latest is not None
        before, rival = self._latest
        name = str(rival.config["engine"])
        faster = before.median_s / (verdict.gain * rival.median_s)
        self._keep([before, replace(rival, costs=tuple(cost * faster for cost in rival.costs))])
        self._note(name, f"{name} is {verdict} on live frames")

    def refuse(self, reason: str) -> None:
        """Notes that the latest engine cannot serve."""
        assert self._latest is not None
        name = str(self._latest[1].config["engine"])
        self._note(name, f"{name} is not used ({reason.rstrip('.')})")

    def interrupt(self) -> None:
        """Ends a trial that is under way, from any thread."""
        runner = self._runner
        if runner is not None:
            runner.interrupt()

    @property
    def _spent_s(self) -> float:
        return 0.0 if self._runner is None else self._runner.processor_s

    def _records(
        self, configs: Mapping[str, Config], task: Mapping[str, Any], key: Key, model: SplitModel
    ) -> list[Record]:
        """Returns what a trial shows about two engines, in turns."""
        if self._runner is None:
            self._runner = self._open_runner(self._spec)
        about = {"batch_size": self._batch_size}
        contest = EngineContest(self._runner, key, task, about, model_features(model), time.monotonic)
        return contest.records(configs, time.monotonic() + MAX_TRIAL_S)

    def _judged(self, name: str, records: list[Record]) -> Rival | None:
        """Returns the second engine of a trial as a rival of the first one, unless it fails or is clearly slower."""
        self._tries[name] = self._tries.get(name, 0) + 1
        if len(records) < 2 or self._tries[name] > MAX_TRIES:
            self._note(name, f"{name} could not be compared")
            return None
        before, rival = self._latest = records[0], records[1]
        has_failed = before.error is not None or rival.error is not None
        if has_failed or rival.median_s > CLEARLY_SLOWER * before.median_s:
            self._keep(records)
            self._note(name, f"{describe_comparison(records)} in a trial")
            return None
        try:
            return Rival(
                name, load_model(replace(self._spec, execution_config=ExecutionConfig.from_json(rival.config)))
            )
        except ConfigurationError as error:
            self.refuse(str(error))
            return None

    def _keep(self, records: list[Record]) -> None:
        self._database.keep(records, "the comparison of engines is")

    def _note(self, name: str, found: str) -> None:
        self._settled.add(name)
        self._found.append(found)
