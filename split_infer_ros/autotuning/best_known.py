"""Finds the best configuration that tuning recorded for a model on this machine.

Pipelines take their settings from this configuration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from split_infer_ros.autotuning.chain_contest import is_proven
from split_infer_ros.autotuning.spaces import (
    NETWORK,
    PIPELINE,
    TORCH_KNOBS,
    network_space,
    objection_to,
    pipeline_space,
)
from split_infer_ros.autotuning.tasks import network_task, pipeline_task
from split_infer_ros.buffers.policy import AUTO
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.runtime.num_threads import fewer_than_all
from split_infer_ros.search.space import describe_config
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_engines import engines_for
from split_infer_ros.telemetry.machine import num_cores


@dataclass(frozen=True)
class BestKnown:
    """The best records of a model on this machine.

    Attributes:
        network: the record of how to run the network; None if the network was not tuned.
        pipeline: the record of how to split and batch the pipeline; None if the pipeline was not tuned.
        read_s: how long it took to read the records, in seconds.
        precision: the precision of the network.
    """

    network: Record | None = None
    pipeline: Record | None = None
    read_s: float = 0.0
    precision: Precision = Precision.FP32

    @property
    def _pipeline_config(self) -> Mapping[str, Any]:
        return {} if self.pipeline is None else self.pipeline.config

    @property
    def execution_config(self) -> ExecutionConfig:
        """The execution config of the network. If the network was not tuned, the default one in ``precision``."""
        if self.network is None:
            return ExecutionConfig(precision=self.precision)
        return ExecutionConfig.from_json(self.network.config)

    @property
    def head_threads(self) -> int:
        """The recorded number of threads of the head; 0 if it is unknown."""
        return int(self._pipeline_config.get("head_threads", 0))

    def with_tuned_threads(self, model: SplitModel, settings: StageSettings) -> SplitModel:
        """Returns a model with the number of threads that tuning found for a pipeline with these settings.

        It has that number only if the settings have the tuned split point and batch size. Otherwise it stays as it is.
        """
        config = self._pipeline_config
        if not config or (settings.split_point, settings.batch_size) != (config["split_point"], config["batch_size"]):
            return model
        return model.with_threads(fewer_than_all(config["backbone_threads"]))

    def fill_in(self, wanted: StageSettings) -> StageSettings:
        """Returns the settings, with tuned values for those that the user left open.

        Split point ``default``, batch size 0 and memory policy ``auto`` count as open. A batch size is filled in only
        together with the split point. No frame then waits for others. CUDA graphs are turned off if tuning found that
        faster.
        """
        config = self._pipeline_config
        if not config:
            return wanted
        settings = replace(wanted, cuda_graphs=wanted.cuda_graphs and config["cuda_graphs"])
        if wanted.memory_policy == AUTO:
            settings = replace(settings, memory_policy=config["memory_policy"])
        if wanted.split_point == "default":
            settings = replace(settings, split_point=config["split_point"])
            if not wanted.batch_size:
                settings = replace(settings, batch_size=config["batch_size"], batch_timeout_s=0.0)
        return settings

    def __str__(self) -> str:
        """Returns in words which records exist and what they say."""
        if self.network is None and self.pipeline is None:
            return "nothing was measured for it here; the command `tune` looks for the fastest way to run it"
        parts = [
            f"{record.task['stage']} {describe_config(_relevant(record.config))} ({1e3 * record.median_s:.1f} ms, "
            f"of {time.strftime('%Y-%m-%d %H:%M', time.localtime(record.time))})"
            for record in (self.network, self.pipeline)
            if record is not None
        ]
        return f"tuned: {'; '.join(parts)}; read in {1e3 * self.read_s:.1f} ms"


def _relevant(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a configuration without a micro-batch of 0 and, if another engine runs, without torch's knobs."""
    is_torch = config.get("engine", Engine.TORCH.value) == Engine.TORCH.value
    left_out = () if is_torch else TORCH_KNOBS
    return {name: value for name, value in config.items() if name not in left_out and (name != "micro_batch" or value)}


def find_best_known(
    model: SplitModel,
    database: Database,
    precision: Precision = Precision.FP32,
    batch_size: int = 0,
    engines: Sequence[str] = (),
) -> BestKnown:
    """Finds the best records of a model on this machine. The function reads the database once.

    Records with configurations outside ``network_space`` and ``pipeline_space`` are not used.

    Args:
        model: the model on its device, with the execution config in which it runs untuned.
        database: holds the records.
        precision: the precision of the network.
        batch_size: images per batch, 0 for a single image. Without records of it, those of the nearest batch size are
            used.
        engines: the engines that may run the network. By default, all that are installed and run on the model's device.
    """
    begin = time.perf_counter()
    key = Key.here(str(model.device))
    own = [
        record
        for record in database.records()
        if record.task.get("fingerprint") == model.network.fingerprint and key.fits(record)
    ]
    space = network_space(num_cores(), (precision,), engines=engines or engines_for(model, precision))
    by_size: dict[int, list[Record]] = {}
    for record in own:
        is_usable = record.task.get("stage") == NETWORK and is_proven(record)
        if is_usable and objection_to(record.config, space, model) is None:
            size = _batch_size(record)
            if size and same(record.task, network_task(model, size)):
                by_size.setdefault(size, []).append(record)
    bests = {size: best for size, records in by_size.items() if (best := best_of(records))}
    nearest = min(bests, key=lambda size: abs(math.log(size / max(1, batch_size))), default=None)
    network = None if nearest is None else bests[nearest]
    config = space.default if network is None else network.config
    pipelines, task = pipeline_space(model, num_cores()), pipeline_task(model, config)
    pipeline = best_of(
        record
        for record in own
        if record.task.get("stage") == PIPELINE and same(record.task, task) and record.config in pipelines
    )
    return BestKnown(network, pipeline, time.perf_counter() - begin, precision)


def _batch_size(record: Record) -> int:
    """Returns the batch size of a network's record; 0 if its task has no readable shapes."""
    match record.task.get("shapes"):
        case [[int(size), *_]] if size > 0:
            return size
    return 0
