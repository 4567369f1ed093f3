"""Tunes a model on this machine: first how its network is run, then split point, batch size and threads."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from split_infer_ros.autotuning.graph_tuner import GraphTuner
from split_infer_ros.autotuning.model_features import model_features
from split_infer_ros.autotuning.progress import Progress
from split_infer_ros.autotuning.spaces import (
    NETWORK,
    PIPELINE,
    SEGMENTS,
    engines_for,
    network_space,
    objection_to,
    pipeline_space,
)
from split_infer_ros.autotuning.tasks import network_task, pipeline_task
from split_infer_ros.autotuning.trial_process import TrialRunner, had_too_little_time
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.search.cost_model import Sample
from split_infer_ros.search.space import Config, Frozen, Space, frozen
from split_infer_ros.search.strategies import Exhaustive, Guided, Random, Search, SearchStrategy, Tried, relative_costs
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_model import TorchModel
from split_infer_ros.telemetry.machine import num_cores

MIN_TRIAL_S = 5.0  # of each trial, however late: a trial that is ended costs a new process, which takes longer
MAX_TRIAL_S = 90.0  # time for a compiler to finish a network
MAX_SCHEDULES_S = 600.0  # time to find schedules of all convolutions of a network
NETWORK_SHARE = 0.6  # of the time; the pipeline has the rest
UNIFORM_SHARE = 0.8  # of the network's time; the graph tuner has the rest
MAX_REPEATS = 3  # measurements of a configuration that is uncertain and would be the best
MAX_OTHER_SAMPLES = 150  # measurements of other models from which the cost model learns


class Tuner:
    """Tunes one model.

    Args:
        model: the model on its device, with the execution config in which it runs untuned.
        runner: runs the trials.
        database: stores their records.
        strategy: how the spaces are searched.
        precisions: those that the user allows. Nodes may ask for any, so the pipeline is tuned for each.
        batch_size: images a batch while the network is tuned alone.
        seed: of the search.
        report: called with the progress after each trial.
        clock: returns seconds.
        engines: those that may run the network; by default all that are installed and run on the model's device.
    """

    def __init__(
        self,
        model: SplitModel,
        runner: TrialRunner,
        database: Database,
        *,
        strategy: SearchStrategy = SearchStrategy.GUIDED,
        precisions: Sequence[str] = ("fp32",),
        batch_size: int = 1,
        seed: int = 0,
        report: Callable[[Progress], object] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
        engines: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._runner, self._database = runner, database
        self._strategy, self._seed, self._batch_size = strategy, seed, batch_size
        self._report, self._clock = report, clock
        self._precisions = tuple(precisions)
        self._key = Key.here(str(model.device))
        engines = engines or engines_for(model)
        self._network_space = network_space(num_cores(), precisions, model.device.type, engines=engines)
        self._quick_space = network_space(num_cores(), precisions, model.device.type, compilers=False, engines=engines)
        self._features = model_features(model)

    def tune(self, seconds: float) -> tuple[Record | None, Record | None]:
        """Searches for ``seconds``, or until all was tried.

        Returns:
            The best records of network and pipeline in the first precision; None if there is none.

        Raises:
            ConfigurationError: no trial can be run at all.
        """
        begin = self._clock()
        self.tune_network(begin + NETWORK_SHARE * seconds)
        pipelines = []
        for index, precision in enumerate(self._precisions):
            now = self._clock()
            share_s = (begin + seconds - now) / (len(self._precisions) - index)  # time that is left over is shared
            pipelines.append(self.tune_pipeline(precision, now + share_s))
        return self._best_network(self._precisions[0]), pipelines[0]

    def compare_engines(self, end: float) -> list[Record]:
        """Times the network untuned by each engine, as far as the clock does not show ``end``.

        Returns:
            A record for each engine that was tried, in their order. An engine that cannot run the model has an error.
        """
        task, about = network_task(self._model, self._batch_size), {"batch_size": self._batch_size}
        records = []
        for engine in self._network_space.knobs["engine"]:
            if self._clock() < end:
                config = {**self._network_space.default, "engine": engine}
                records.append(self._trial(NETWORK, config, task, about, end))
        return records

    def tune_network(self, end: float) -> Record | None:
        """Tunes the execution config until the clock shows ``end``.

        First all segments share one, then the graph tuner chooses one for each segment of a model of torch.
        """
        space, task = self._network_space, network_task(self._model, self._batch_size)
        about = {"batch_size": self._batch_size}
        now = self._clock()
        for part in (self._quick_space, space):  # a compiler's one trial takes as long as twenty others
            self._stage(NETWORK, part, task, about, now + UNIFORM_SHARE * (end - now))
        best = best_of(self._records(NETWORK, space, task))
        by_torch = best is not None and best.config["engine"] == Engine.TORCH.value and "segments" not in best.config
        if best is not None and by_torch and isinstance(self._model, TorchModel) and self._clock() < end:
            of_segments = {**task, "stage": SEGMENTS}
            graph = GraphTuner(self._model, self._runner, self._database, self._key, of_segments)
            kinds = list(map(str, space.knobs["convolutions"]))
            config = graph.best(kinds, best.config, about, end, self._clock)
            known = self._database.find(self._key, task)
            if config is not None and not any(same(config, each.config) for each in known):
                self._trial(NETWORK, config, task, about, end)
        return best_of(self._records(NETWORK, space, task))

    def tune_pipeline(self, precision: str, end: float) -> Record | None:
        """Tunes split point, batch size and threads of the pipeline until the clock shows ``end``.

        Its network runs with the execution config that is best in this precision.
        """
        network = self._best_network(precision)
        config = {**self._network_space.default, "precision": precision} if network is None else network.config
        space, task = pipeline_space(self._model, num_cores()), pipeline_task(self._model, config)
        self._stage(PIPELINE, space, task, {"form": dict(config), "precision": precision}, end)
        return best_of(self._records(PIPELINE, space, task))

    def _best_network(self, precision: str) -> Record | None:
        records = self._records(NETWORK, self._network_space, network_task(self._model, self._batch_size))
        return best_of(record for record in records if record.config["precision"] == precision)

    def _stage(self, stage: str, space: Space, task: Mapping[str, Any], about: Mapping[str, Any], end: float) -> None:
        search = self._make_search(stage, space)
        records = self._records(stage, space, task)
        while True:
            uniform = [
                record
                for record in records
                if "segments" not in record.config and not had_too_little_time(record, _max_trial_s(record.config))
            ]
            latest = {frozen(record.config): record for record in uniform}
            tried = [Tried(record.config, record.median_s) for record in latest.values()]
            config = (search.propose(tried) or _uncertain_best(records)) if self._clock() < end else None
            record = None if config is None else self._trial(stage, config, task, about, end)
            if record is not None:
                records.append(record)
            default = next((each for each in records if each.config == space.default), None)
            self._report(
                Progress(
                    stage=stage,
                    num_trials=len(records),
                    space_size=len(space),
                    record=record,
                    best=best_of(records),
                    default=default,
                )
            )
            if record is None:
                return

    def _trial(
        self, stage: str, config: Config, task: Mapping[str, Any], about: Mapping[str, Any], end: float
    ) -> Record:
        limit_s = max(MIN_TRIAL_S, min(_max_trial_s(config), end - self._clock()))
        outcome = self._runner.run(stage, config, about, limit_s)
        facts = {**outcome.facts, "traits": self._features}
        record = self._key.record(task, config, outcome.costs, time=time.time(), error=outcome.error, facts=facts)
        self._database.keep([record], "the trial is")
        return record

    def _records(self, stage: str, space: Space, task: Mapping[str, Any]) -> list[Record]:
        """Returns the records of a task whose configurations lie in the space."""
        return [record for record in self._database.find(self._key, task) if self._fits(stage, record, space)]

    def _fits(self, stage: str, record: Record, space: Space) -> bool:
        if stage == NETWORK:
            return objection_to(record.config, space, self._model) is None
        return record.config in space

    def _make_search(self, stage: str, space: Space) -> Search:
        if self._strategy is SearchStrategy.EXHAUSTIVE:
            return Exhaustive(space)
        if self._strategy is SearchStrategy.RANDOM:
            return Random(space, self._seed)
        other_samples = self._samples_of_other_models(space) if stage == NETWORK else []
        return Guided(space, seed=self._seed, features=self._features, other_samples=other_samples)

    def _samples_of_other_models(self, space: Space) -> list[Sample]:
        """Returns what was measured on this machine of other models' networks."""
        groups: dict[str, list[Record]] = {}
        for record in self._database.records():
            own = record.task.get("fingerprint") == self._model.fingerprint
            if self._key.fits(record) and record.task.get("stage") == NETWORK and not own and record.config in space:
                groups.setdefault(repr(sorted(record.task.items())), []).append(record)
        samples = [
            sample
            for records in groups.values()
            for sample in relative_costs(
                [Tried(record.config, record.median_s) for record in records if not record.uncertain],
                space.default,
                _finite_numbers(records[-1].facts.get("traits")),
            )
        ]
        return samples[-MAX_OTHER_SAMPLES:]


def _uncertain_best(records: Sequence[Record]) -> Config | None:
    """Returns the fastest uncertain configuration that would be the best, unless it was measured often enough."""
    best = best_of(records)
    found: dict[Frozen, list[Record]] = {}
    for record in records:
        if "segments" not in record.config:
            found.setdefault(frozen(record.config), []).append(record)
    uncertain = [
        measured[-1]
        for measured in found.values()
        if len(measured) < MAX_REPEATS and all(each.uncertain for each in measured)
        if best is None or measured[-1].median_s < best.median_s
    ]
    return min(uncertain, key=lambda record: record.median_s).config if uncertain else None


def _max_trial_s(config: Mapping[str, Any]) -> float:
    return MAX_SCHEDULES_S if config.get("convolutions") == Convolutions.TRITON.value else MAX_TRIAL_S


def _finite_numbers(features: object) -> dict[str, float]:
    if not isinstance(features, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in features.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
