"""Finds engines, and settings of an engine, that might run a served model faster.

Each is first tried in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from split_infer_ros.autotuning.background_trials import BackgroundTrials, TrialRivals, is_clearly_slower
from split_infer_ros.autotuning.best_known import find_best_known
from split_infer_ros.autotuning.engine_choice import describe_comparison, measured_configs, name_of
from split_infer_ros.autotuning.spaces import micro_batches_of, network_space, served_config, thread_counts
from split_infer_ros.autotuning.tasks import network_task
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Compiler, ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.search.space import Config
from split_infer_ros.server.improving.measures import CoolMeasure
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for
from split_infer_ros.telemetry.heat import Processor
from split_infer_ros.telemetry.machine import num_cores

NO_FASTER = 0.999  # the highest gain of a rival that was taken back; rounding must not make it the fastest
MAX_IN_HEAT = 2.0  # times the fastest one: what spares a processor may be slower
MAX_TRIES = 3  # a contest that others ended is repeated, but not for ever


class EngineRivals(TrialRivals):
    """Proposes what was not compared on this machine yet. It is a ``Rivals``.

    First come the other engines of a model. Then single images are computed with fewer threads of the engine that is
    left, and larger batches in micro-batches. One thread is not tried: a batch takes nearly twice as long on it as on
    two. Larger batches are computed on lanes while frames come fast, and lanes have their own numbers of threads.

    What fails, gives other results, or is clearly slower in a trial is not proposed. What was found is kept in the
    database, like the results of ``tune``.

    Args:
        trials: runs the trials. Records have their batch size.
        database: keeps the records.
    """

    def __init__(self, trials: BackgroundTrials, database: Database) -> None:
        super().__init__(trials)
        self._database = database
        self._settled: set[str] = set()
        self._tries: dict[str, int] = {}
        self._latest = ""  # the name of what was proposed last
        self._records: Sequence[Record] = ()  # of its trial: the present configuration's and its own

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        """Returns the next engine or setting that may be faster; see ``Rivals.next``.

        What was measured meanwhile, for another model of this network or by another node, needs no trial. While a
        processor is too hot, what this machine has measured is proposed, the fastest first.
        """
        if self._hot is not None:
            return self._measured(model, self._hot)
        known = self._known(model)
        if known is not None:
            return known
        for name, config in self._untried(model).items():
            if is_over() or not self._trials.may_go_on:
                break
            records = self._trials.compare({name: config}, model, split_point, is_over)
            if is_over():
                break
            rival = self._judged(name, records)
            if rival is not None:
                return rival
        if not is_over():
            self._note_cost()
        return None

    def _untried(self, model: SplitModel) -> Mapping[str, Config]:
        """Returns the configurations that were neither measured nor settled, by name."""
        present, precision, batch_size = model.execution_config, model.precision, self._trials.batch_size
        engines = engines_for(model, precision)
        default = network_space(num_cores(), (precision,), model.device.type, compilers=False, engines=engines).default
        measured = measured_configs(model, self._database, precision, batch_size)
        done = {name_of(config) for config in measured} | {config["engine"] for config in measured}
        configs = [{**default, "engine": engine} for engine in engines if engine != present.engine_text]
        as_is = served_config(model)
        is_plain = not present.segments and present.compiler is Compiler.NONE  # others take long to make
        if model.device.type == "cpu" and batch_size == 1 and is_plain:
            configs += [{**as_is, "threads": count} for count in thread_counts(num_cores()) if count > 1]
        if present.engine is not Engine.TORCH:
            configs += [{**as_is, "micro_batch": size} for size in micro_batches_of(batch_size, model.device.type)]
        done |= {name_of(as_is)} | self._settled
        return {name: config for config in configs if (name := name_of(config)) not in done}

    def again(self, hot: Processor | None) -> None:
        """Proposes again what was compared before, because a processor has become too hot, or has cooled."""
        super().again(hot)
        self._settled.clear()
        self._tries.clear()
        self._found.clear()  # otherwise the summary would grow with each hot day

    def settle(self, verdict: Verdict) -> None:
        """Records what turns on live frames have shown about the latest rival, if it comes from a trial.

        One that was taken back is recorded as no faster, because later starts take the fastest one.
        """
        if self._records:
            before, rival = self._records
            gain = verdict.gain if verdict.rival_wins else min(NO_FASTER, verdict.gain)
            faster = before.median_s / (gain * rival.median_s)
            self._keep([before, replace(rival, costs=tuple(cost * faster for cost in rival.costs))])
        self._note(self._latest, f"{self._latest} is {verdict} on live frames")

    def refuse(self, reason: str) -> None:
        """Notes that the latest rival cannot serve."""
        self._note(self._latest, f"{self._latest} is not used ({reason.rstrip('.')})")

    def _known(self, model: SplitModel) -> Rival | None:
        """Returns the fastest configuration that was measured, as a rival of a slower one."""
        best = find_best_known(model, self._database, model.precision, self._trials.batch_size).network
        if best is None or name_of(best.config) in {name_of(model.execution_config.as_json()), *self._settled}:
            return None
        return self._rival(ExecutionConfig.from_json(best.config))

    def _measured(self, model: SplitModel, hot: Processor) -> Rival | None:
        """Returns the next configuration that runs on this machine, the fastest first; None if none is left.

        Compiled ones are left out, because compiling heats the machine further. So are those that take much longer than
        the fastest one: frames would be lost while they take turns. Below fp32 there is none, because detections would
        have to be compared first.
        """
        if model.precision is not Precision.FP32:
            return None
        self._settled.add(name_of(model.execution_config.as_json()))  # whatever takes its place has won against it
        task, engines = network_task(model, self._trials.batch_size), engines_for(model, model.precision)
        records = [each for each in self._database.find(Key.here(str(model.device)), task) if each.error is None]
        records.sort(key=lambda each: each.median_s)
        for record in [each for each in records if each.median_s <= MAX_IN_HEAT * records[0].median_s]:
            config = ExecutionConfig.from_json(record.config)
            if (config.precision, config.compiler) != (model.precision, Compiler.NONE) or config.segments:
                continue
            if name_of(record.config) in self._settled or config.engine_text not in engines:
                continue
            rival = self._rival(config)
            if rival is not None:
                return replace(rival, measure=CoolMeasure(hot))
        return None

    def _judged(self, name: str, records: list[Record]) -> Rival | None:
        """Returns the second one of a trial as a rival of the first one, unless it fails or is clearly slower."""
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
        name = self._latest = name_of(config.as_json())
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
        """Keeps the present configuration's record and a rival's.

        The machine may have been busier than in earlier trials. So both are scaled by what the present configuration
        took then. Otherwise the best record would be the one of the calmest minute.
        """
        before = records[0]
        best = best_of(each for each in self._database.records() if _is_repeated(each, before))
        scale = best.median_s / before.median_s if best is not None and before.costs else 1.0
        scaled = [replace(record, costs=tuple(cost * scale for cost in record.costs)) for record in records]
        self._database.keep(scaled, "the comparison of engines is")

    def _note(self, name: str, found: str) -> None:
        self._settled.add(name)
        self._found.append(found)


def _is_repeated(record: Record, later: Record) -> bool:
    """Returns whether both records measure one configuration of one task on one machine."""
    return (record.target, record.versions, record.config) == (later.target, later.versions, later.config) and same(
        record.task, later.task
    )
