"""Tunes a model on this machine: first how its network is run, then where it is split and who has which cores."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from split_infer_ros.autotuning.graph_tuner import GraphTuner
from split_infer_ros.autotuning.model_features import model_features
from split_infer_ros.autotuning.spaces import (
    NETWORK,
    PIPELINE,
    SEGMENTS,
    network_space,
    objection_to,
    pipeline_space,
)
from split_infer_ros.autotuning.trial_process import TrialRunner, had_too_little_time
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.search.cost_model import Sample
from split_infer_ros.search.space import Config, Frozen, Space, frozen
from split_infer_ros.search.strategies import Exhaustive, Guided, Random, Search, Tried, relative_costs
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.machine import num_cores

GUIDED, RANDOM, EXHAUSTIVE = SEARCHES = ("guided", "random", "exhaustive")
LEAST_S = 5.0  # that a trial is given, however late: one that is ended costs a new process, which takes longer
TRIAL_S = 90.0  # in which a compiler may be through with a network
SCHEDULES_S = 600.0  # in which schedules of all its convolutions may be found
NETWORKS_SHARE = 0.6  # of the time
GRAPHS_SHARE = 0.8  # of the network's time, after which segments have their turn
MOST_TIMES = 3  # that what is uncertain, and would be the best, is measured
MOST_KNOWN = 150  # measurements of other models that are learnt from


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a search is.

    Attributes:
        stage: ``network`` or ``pipeline``.
        trials, of: that were made or known, and all that there are.
        record: of the last one; None if it was known.
        best, default: the best so far, and what runs untuned; None while there is none.
    """

    stage: str
    trials: int
    of: int
    record: Record | None
    best: Record | None
    default: Record | None


class Tuner:
    """Tunes one model.

    Args:
        model: on its device, in the form in which it runs untuned.
        runner: where trials are run.
        database: in which all of them are kept.
        search: ``guided``, ``random`` or ``exhaustive``.
        precisions: those that the user allows; nodes may ask for any, so the pipeline is tuned for each.
        batch_size: of the network.
        seed: of the search.
        say: told of each trial.
        clock: seconds.
    """

    def __init__(
        self,
        model: SplitModel,
        runner: TrialRunner,
        database: Database,
        search: str = GUIDED,
        precisions: Sequence[str] = ("fp32",),
        batch_size: int = 1,
        seed: int = 0,
        say: Callable[[Progress], object] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model, self._runner, self._database = model, runner, database
        self._search, self._seed, self._batch_size = search, seed, batch_size
        self._say, self._clock = say, clock
        self._precisions = tuple(precisions)
        self._key = Key.here(str(model.device))
        self._network_space = network_space(num_cores(), precisions, model.device.type)
        self._quick_space = network_space(num_cores(), precisions, model.device.type, compilers=False)
        self._traits = model_features(model.graph, model.entry.image_shape)

    def tune(self, seconds: float) -> tuple[Record | None, Record | None]:
        """Search for so long, or until all was tried.

        Returns:
            The best records of network and pipeline in the first of the precisions, None where none is.

        Raises:
            ConfigurationError: no trial can be run at all.
        """
        begin = self._clock()
        self.tune_network(begin + NETWORKS_SHARE * seconds)
        pipelines = []
        for left in range(len(self._precisions), 0, -1):
            now = self._clock()
            pipelines.append(self.tune_pipeline(self._precisions[-left], now + (begin + seconds - now) / left))
        return self._best_network(self._precisions[0]), pipelines[0]

    def tune_network(self, end: float) -> Record | None:
        """How the network is run, uniformly and then segment by segment; until that time."""
        space, task = self._network_space, network_task(self._model, self._batch_size)
        about = {"batch_size": self._batch_size}
        now = self._clock()
        for part in (self._quick_space, space):  # a compiler's one trial takes as long as twenty others
            self._stage(NETWORK, part, task, about, now + GRAPHS_SHARE * (end - now))
        best = best_of(self._records(NETWORK, space, task))
        if best is not None and self._clock() < end and "segments" not in best.config:
            of_segments = {**task, "stage": SEGMENTS}
            graph = GraphTuner(self._model, self._runner, self._database, self._key, of_segments)
            kinds = list(map(str, space.knobs["convolutions"]))
            config = graph.best(kinds, best.config, about, end, self._clock)
            known = self._database.find(self._key, task)
            if config is not None and not any(same(config, each.config) for each in known):
                self._trial(NETWORK, config, task, about, end)
        return best_of(self._records(NETWORK, space, task))

    def tune_pipeline(self, precision: str, end: float) -> Record | None:
        """Cut, batch and cores of the pipeline, its network run as is best in that precision; until that time."""
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
        size = len(space)
        while True:
            uniform = [record for record in records if "segments" not in record.config and not _too_short(record)]
            latest = {frozen(record.config): record for record in uniform}
            tried = [Tried(record.config, record.median_s) for record in latest.values()]
            config = (search.propose(tried) or _doubtful(records)) if self._clock() < end else None
            record = None if config is None else self._trial(stage, config, task, about, end)
            if record is not None:
                records.append(record)
            default = next((each for each in records if each.config == space.default), None)
            self._say(Progress(stage, len(records), size, record, best_of(records), default))
            if record is None:
                return

    def _trial(
        self, stage: str, config: Config, task: Mapping[str, Any], about: Mapping[str, Any], end: float
    ) -> Record:
        limit_s = max(LEAST_S, min(_longest(config), end - self._clock()))
        outcome = self._runner.run(stage, config, about, limit_s)
        facts = {**outcome.facts, "traits": self._traits}
        record = Record(
            *(self._key.target, self._key.versions_for(task), task, config, outcome.costs, outcome.error, time.time()),
            facts=facts,
        )
        self._database.keep([record], "the trial is")
        return record

    def _records(self, stage: str, space: Space, task: Mapping[str, Any]) -> list[Record]:
        """What is known of a task, as far as it lies in the space."""
        return [record for record in self._database.find(self._key, task) if self._fits(stage, record, space)]

    def _fits(self, stage: str, record: Record, space: Space) -> bool:
        if stage == NETWORK:
            return objection_to(record.config, space, self._model) is None
        return record.config in space

    def _make_search(self, stage: str, space: Space) -> Search:
        if self._search == EXHAUSTIVE:
            return Exhaustive(space)
        if self._search == RANDOM:
            return Random(space, self._seed)
        known = self._of_other_models(space) if stage == NETWORK else []
        return Guided(space, self._seed, self._traits, known)

    def _of_other_models(self, space: Space) -> list[Sample]:
        """What was measured of other models' networks on this machine."""
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
                _numbers(records[-1].facts.get("traits")),
            )
        ]
        return samples[-MOST_KNOWN:]


def _doubtful(records: Sequence[Record]) -> Config | None:
    """The most promising of what would be the best, were it certain, unless it was measured often enough."""
    best = best_of(records)
    found: dict[Frozen, list[Record]] = {}
    for record in records:
        if "segments" not in record.config:
            found.setdefault(frozen(record.config), []).append(record)
    doubts = [
        measured[-1]
        for measured in found.values()
        if len(measured) < MOST_TIMES and all(each.uncertain for each in measured)
        if best is None or measured[-1].median_s < best.median_s
    ]
    return min(doubts, key=lambda record: record.median_s).config if doubts else None


def _too_short(record: Record) -> bool:
    return had_too_little_time(record, _longest(record.config))


def _longest(config: Mapping[str, Any]) -> float:
    return SCHEDULES_S if config.get("convolutions") == Convolutions.TRITON.value else TRIAL_S


def network_task(model: SplitModel, batch_size: int) -> dict[str, Any]:
    """The task of running the whole network on a batch."""
    return {
        "model": model.entry.name,
        "fingerprint": model.fingerprint,
        "stage": NETWORK,
        "shapes": [[batch_size, *model.entry.image_shape]],
    }


def pipeline_task(model: SplitModel, network: Mapping[str, Any]) -> dict[str, Any]:
    """The task of running the pipeline, its network run as that configuration has it."""
    return {
        "model": model.entry.name,
        "fingerprint": model.fingerprint,
        "stage": PIPELINE,
        "shapes": [list(model.entry.image_shape)],
        "network": dict(network),
    }


def _numbers(traits: object) -> dict[str, float]:
    if not isinstance(traits, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in traits.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
