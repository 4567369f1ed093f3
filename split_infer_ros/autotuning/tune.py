"""Tunes a model on this machine: first its network's execution config, then split point, batch size and threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from split_infer_ros.autotuning.chain_contest import ChainContest, is_proven, verdict_on
from split_infer_ros.autotuning.engine_contest import EngineContest
from split_infer_ros.autotuning.graph_tuner import GraphTuner
from split_infer_ros.autotuning.model_features import model_features
from split_infer_ros.autotuning.other_models import samples_of_other_models
from split_infer_ros.autotuning.progress import Progress
from split_infer_ros.autotuning.retries import uncertain_best
from split_infer_ros.autotuning.spaces import (
    NETWORK,
    PIPELINE,
    SEGMENTS,
    micro_batches_of,
    network_space,
    objection_to,
    pipeline_space,
)
from split_infer_ros.autotuning.tasks import network_task, pipeline_task
from split_infer_ros.autotuning.trial_process import MIN_TRIAL_S, TrialRunner, had_too_little_time
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.cost_model import Sample
from split_infer_ros.search.space import Config, Space, frozen
from split_infer_ros.search.strategies import Exhaustive, Guided, Random, Search, SearchStrategy, Tried
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for
from split_infer_ros.telemetry.machine import num_cores
from split_infer_ros.vision_ops.implementations import ImplementationChoice

MAX_TRIAL_S = 90.0  # enough for a compiler to finish a network
MAX_SCHEDULES_S = 600.0  # enough to find schedules of all convolutions of a network
FALLBACK = ImplementationChoice.FALLBACK.value
NETWORK_SHARE = 0.6  # the network's share of the time; the pipeline has the rest
UNIFORM_SHARE = 0.8  # the share of the network's time without segments; the graph tuner has the rest


class Tuner:
    """Tunes one model on this machine.

    Args:
        model: the model on its device, with the execution config in which it runs untuned.
        runner: runs the trials, in a process that loads the same model.
        database: stores the records of the trials.
        strategy: how the spaces are searched.
        precisions: the precisions that the user allows. Nodes may ask for any of them, so the pipeline is tuned for
            each.
        batch_size: images per batch while the network alone is tuned.
        seed: the seed of the search.
        report: called with the progress after each trial and at the end of a search.
        say: called with a sentence that says whether a chain of segments is used, and why.
        clock: returns the time in seconds.
        engines: the engines that may run the network. By default, all that are installed and run on the model's device.
    """

    def __init__(
        self,
        model: SplitModel,
        runner: TrialRunner,
        database: Database,
        *,
        strategy: SearchStrategy = SearchStrategy.GUIDED,
        precisions: Sequence[Precision] = (Precision.FP32,),
        batch_size: int = 1,
        seed: int = 0,
        report: Callable[[Progress], object] = lambda progress: None,
        say: Callable[[str], object] = lambda sentence: None,
        clock: Callable[[], float] = time.monotonic,
        engines: Sequence[str] = (),
    ) -> None:
        self._model, self._runner, self._database = model, runner, database
        self._strategy, self._seed = strategy, seed
        self._report, self._say, self._clock = report, say, clock
        self._precisions = tuple(precisions)
        self._key = Key.here(str(model.device))
        engines = engines or tuple(dict.fromkeys(each for wanted in precisions for each in engines_for(model, wanted)))
        space = partial(
            network_space,
            num_cores(),
            precisions,
            model.device.type,
            engines=engines,
            falls_back=_has_host_operators(model),
            micro_batches=micro_batches_of(batch_size if model.network.takes_batches else 1, model.device.type),
        )
        self._network_space = space()
        self._quick_space = space(compilers=False)
        self._features = model_features(model)
        self._network_task, self._about_network = network_task(model, batch_size), {"batch_size": batch_size}

    def tune(self, seconds: float) -> tuple[Record | None, Record | None]:
        """Tunes the network, then the pipeline, for ``seconds`` seconds or until every configuration was tried.

        Returns:
            The best record of the network and the best record of the pipeline, both in the first precision. A record is
            None if no configuration could run.

        Raises:
            ConfigurationError: no trial can run at all.
        """
        begin = self._clock()
        self.tune_network(begin + NETWORK_SHARE * seconds)
        pipelines = []
        for index, precision in enumerate(self._precisions):
            now = self._clock()
            share_s = (begin + seconds - now) / (len(self._precisions) - index)  # time that is left is shared
            pipelines.append(self.tune_pipeline(precision, now + share_s))
        return self._best_network(self._precisions[0]), pipelines[0]

    def compare_engines(self, end: float) -> list[Record]:
        """Times the untuned network with each engine until the clock shows ``end``, or soon after.

        If batches have several images, micro-batches are then tried on a CPU with the fastest engine, unless that is
        torch.

        Returns:
            A record for each configuration that was tried. If an engine cannot run the model, its record has an error.
        """
        task, about = self._network_task, self._about_network
        contest = EngineContest(self._runner, self._key, task, about, self._features, self._clock)
        return contest.compare(self._network_space, self._database, end)

    def tune_network(self, end: float) -> Record | None:
        """Tunes the execution config of the network until the clock shows ``end``.

        Returns the best record, or None if there is none.

        At first, all segments of the network share one execution config. Then the graph tuner chooses convolutions
        for each segment of a torch model.
        """
        now = self._clock()
        for space in (self._quick_space, self._network_space):  # one trial of a compiler takes as long as twenty others
            self._stage(NETWORK, space, self._network_task, self._about_network, now + UNIFORM_SHARE * (end - now))
        self._tune_segments(end)
        return best_of(self._network_records())

    def _tune_segments(self, end: float) -> None:
        """Tries a chain of segments, if a torch model runs best with torch and the clock does not yet show ``end``."""
        uniform = best_of(each for each in self._network_records() if "segments" not in each.config)
        if uniform is None or self._clock() >= end:
            return
        if uniform.config["engine"] != Engine.TORCH.value or uniform.config["operators"] == FALLBACK:
            return
        from split_infer_ros.split.torch_network import TorchNetwork  # only here: it imports torch

        if not isinstance(self._model.network, TorchNetwork):
            return
        task, about = self._network_task, self._about_network
        tuner = GraphTuner(self._model, self._runner, self._database, self._key, {**task, "stage": SEGMENTS})
        kinds = list(map(str, self._network_space.knobs["convolutions"]))
        chain = tuner.best(kinds, uniform.config, about, end, self._clock)
        if chain.config is None:
            self._say(f"No chain of segments is tried. {chain.reason}")
            return
        contest = ChainContest(self._runner, self._database, self._key, task)
        self._say(verdict_on(contest.record(chain.config, uniform, about, limit_s=_max_trial_s(uniform.config))))

    def tune_pipeline(self, precision: Precision, end: float) -> Record | None:
        """Tunes split point, batch size and threads of the pipeline until the clock shows ``end``.

        On a GPU, it also tunes CUDA graphs and the memory policy. The network runs with the execution config that is
        best in this precision. Returns the best record, or None if there is none.
        """
        network = self._best_network(precision)
        config = self._untuned(precision) if network is None else network.config
        space, task = pipeline_space(self._model, num_cores()), pipeline_task(self._model, config)
        self._stage(PIPELINE, space, task, {"form": dict(config)}, end)
        return best_of(self._records(PIPELINE, space, task))

    def _untuned(self, precision: Precision) -> Config:
        """Returns the configuration in which the network runs while nothing is known about it."""
        open_to_all = self._network_space.knobs["engine"]
        known = [engine for engine in engines_for(self._model, precision) if engine in open_to_all]
        return {**self._network_space.default, "precision": precision.value, "engine": (*known, *open_to_all)[0]}

    def _best_network(self, precision: Precision) -> Record | None:
        return best_of(each for each in self._network_records() if each.config["precision"] == precision.value)

    def _network_records(self) -> list[Record]:
        return self._records(NETWORK, self._network_space, self._network_task)

    def _stage(self, stage: str, space: Space, task: Mapping[str, Any], about: Mapping[str, Any], end: float) -> None:
        search = self._make_search(stage, space)
        records = self._records(stage, space, task)
        while True:
            latest = {
                frozen(record.config): record
                for record in records
                if "segments" not in record.config and not had_too_little_time(record, _max_trial_s(record.config))
            }
            tried = [Tried(record.config, record.median_s) for record in latest.values()]
            config = (search.propose(tried) or uncertain_best(records)) if self._clock() < end else None
            record = None if config is None else self._trial(stage, config, task, about, end)
            if record is not None:
                records.append(record)
            default = next((each for each in records if each.config == space.default), None)
            self._report(Progress(stage, len(records), len(space), record, best_of(records), default))
            if record is None:
                return

    def _trial(
        self, stage: str, config: Config, task: Mapping[str, Any], about: Mapping[str, Any], end: float
    ) -> Record:
        limit_s = max(MIN_TRIAL_S, min(_max_trial_s(config), end - self._clock()))
        outcome = self._runner.run(stage, config, about, limit_s)
        record = outcome.as_record(self._key, task, config, traits=self._features)
        self._database.keep([record], "the trial is")
        return record

    def _records(self, stage: str, space: Space, task: Mapping[str, Any]) -> list[Record]:
        """Returns the records of a task that are proven and whose configurations lie in the space."""
        found = self._database.find(self._key, task)
        if stage == NETWORK:
            return [each for each in found if is_proven(each) and objection_to(each.config, space, self._model) is None]
        return [each for each in found if each.config in space]

    def _make_search(self, stage: str, space: Space) -> Search:
        if self._strategy is SearchStrategy.EXHAUSTIVE:
            return Exhaustive(space)
        if self._strategy is SearchStrategy.RANDOM:
            return Random(space, self._seed)
        others: list[Sample] = []
        if stage == NETWORK:
            fingerprint = self._model.network.fingerprint
            others = samples_of_other_models(self._database, self._key, fingerprint=fingerprint, space=space)
        return Guided(space, seed=self._seed, features=self._features, other_samples=others)


def _max_trial_s(config: Mapping[str, Any]) -> float:
    compiles = config.get("convolutions") in (Convolutions.TRITON.value, Convolutions.MERGED.value)
    return MAX_SCHEDULES_S if compiles else MAX_TRIAL_S


def _has_host_operators(model: SplitModel) -> bool:
    if model.device.type == "cpu":
        return False
    from split_infer_ros.operator_placement.listed_placement import has_host_operators  # only here: it imports torch

    return has_host_operators(model)
