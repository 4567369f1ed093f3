"""Finds the engines that might run a served model faster. Each is first tried in a process of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from split_infer_ros.autotuning.background_trials import BackgroundTrials, TrialRivals, is_clearly_slower
from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.engine_choice import describe_comparison, measured_engines
from split_infer_ros.autotuning.spaces import network_space
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for
from split_infer_ros.telemetry.machine import num_cores

NO_FASTER = 0.999  # the highest gain of an engine that was taken back; rounding must not make it the fastest
MAX_TRIES = 3  # a contest that others ended is repeated, but not for ever


class EngineRivals(TrialRivals):
    """Proposes the engines of a model that were not compared on this machine yet. It is a ``Rivals``.

    An engine that fails, whose results differ, or that is clearly slower in a trial is not proposed. What was found is
    kept in the database, like the results of ``tune``.

    Args:
        trials: runs the trials. Records have their batch size.
        database: keeps the records.
    """

    def __init__(self, trials: BackgroundTrials, database: Database) -> None:
        super().__init__(trials)
        self._database = database
        self._settled: set[str] = set()
        self._tries: dict[str, int] = {}
        self._latest = ""  # the engine that was proposed last
        self._records: Sequence[Record] = ()  # of its trial: the present engine's and its own

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns the next engine that may be faster; see ``Rivals.next``.

        An engine that was measured meanwhile, for another model of this network or by another node, needs no trial.
        """
        known = self._known(model)
        if known is not None:
            return known
        present, precision = model.execution_config.engine_text, model.precision
        engines = engines_for(model, precision)
        measured = measured_engines(model, self._database, precision, self._trials.batch_size)
        left = [name for name in engines if name not in {present, *measured, *self._settled}]
        space = network_space(num_cores(), (precision,), model.device.type, compilers=False, engines=engines)
        for name in left:
            if is_over() or not self._trials.may_go_on:
                break
            config: Config = {**space.default, "engine": name}
            records = self._trials.compare({name: config}, model, split_point, is_over)
            if is_over():
                break
            rival = self._judged(name, records)
            if rival is not None:
                return rival
        if not is_over():
            self._note_cost()
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

    def _known(self, model: SplitModel) -> Rival | None:
        """Returns the fastest engine that was measured, as a rival of a slower one."""
        best = find_best_known(model, self._database, model.precision, self._trials.batch_size).network
        if best is None:
            return None
        config = ExecutionConfig.from_json(best.config)
        if config.engine_text in {model.execution_config.engine_text, *self._settled}:
            return None
        return self._rival(config)

    def _judged(self, name: str, records: list[Record]) -> Rival | None:
        """Returns the second engine of a trial as a rival of the first one, unless it fails or is clearly slower."""
        if len(records) < 2:
            self._note(name, f"{name} could not be compared")
            return None
        before, rival = records
        if is_clearly_slower(rival, before):
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
            return Rival(name, load_model(replace(self._trials.spec, execution_config=config)))
        except ConfigurationError as error:
            self.refuse(str(error))
            return None

    def _keep(self, records: list[Record]) -> None:
        self._database.keep(records, "the comparison of engines is")

    def _note(self, name: str, found: str) -> None:
        self._settled.add(name)
        self._found.append(found)
