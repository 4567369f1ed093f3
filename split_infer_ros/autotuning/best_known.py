"""What tuning found before: the best record for this model here, and what a pipeline takes from it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from split_infer_ros.autotuning.spaces import NETWORK, PIPELINE, network_space, objection_to, pipeline_space
from split_infer_ros.autotuning.tune import network_task, pipeline_task
from split_infer_ros.buffers.policy import AUTO
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.measurements.database import Database, best_of
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record, same
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.search.space import told
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.machine import num_cores


@dataclass(frozen=True)
class BestKnown:
    """What was found for a model here.

    Attributes:
        network, pipeline: the best records; None where there is none.
        read_s: how long it took to read them, seconds.
    """

    network: Record | None = None
    pipeline: Record | None = None
    read_s: float = 0.0
    _place: Mapping[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_place", {} if self.pipeline is None else self.pipeline.config)

    @property
    def form(self) -> ExecutionConfig:
        """How the network is run."""
        return ExecutionConfig() if self.network is None else ExecutionConfig.from_json(self.network.config)

    @property
    def threads(self) -> tuple[int, int]:
        """Cores of the backbone and of the head as they were recorded; 0 where nothing is known."""
        alone = 0 if self.network is None else self.network.config["threads"]
        return self._place.get("backbone_threads", alone), self._place.get("head_threads", 0)

    def backbone_threads(self, settings: StageSettings) -> int:
        """Cores for the backbone of a pipeline that runs so; 0, all, unless it is split and batched as was tuned."""
        place = self._place
        if not place or (settings.split_point, settings.batch_size) != (place["split_point"], place["batch_size"]):
            return 0
        return int(place["backbone_threads"])

    def fill_in(self, wanted: StageSettings) -> StageSettings:
        """Settings with the best put where the user left it open: cut ``default``, batch size 0, memory ``auto``."""
        place = self._place
        if not place:
            return wanted
        settings = replace(wanted, cuda_graphs=wanted.cuda_graphs and place["cuda_graphs"])
        if wanted.memory_policy == AUTO:
            settings = replace(settings, memory_policy=place["memory_policy"])
        if wanted.split_point == "default":
            settings = replace(settings, split_point=place["split_point"])
            if not wanted.batch_size:
                settings = replace(settings, batch_size=place["batch_size"])
        return settings

    def __str__(self) -> str:
        """For people: which records, and what they said."""
        if self.network is None and self.pipeline is None:
            return "nothing was tuned for it here, so it runs as it is; the command `tune` looks for something faster"
        parts = [
            f"{record.task['stage']} {told(record.config)} ({1e3 * record.median_s:.1f} ms, "
            f"of {time.strftime('%Y-%m-%d %H:%M', time.localtime(record.time))})"
            for record in (self.network, self.pipeline)
            if record is not None
        ]
        return f"tuned: {'; '.join(parts)}; read in {1e3 * self.read_s:.1f} ms"


def find_best_known(model: SplitModel, database: Database, precision: str = "fp32", batch_size: int = 0) -> BestKnown:
    """The best records of a model here, in one reading of the database; those outside the declared spaces are none.

    Args:
        model: on its device, in the form in which it runs untuned.
        database: that is read.
        precision: of the backbone.
        batch_size: of the network, or else the nearest that was tuned; 0: a single image.
    """
    begin = time.perf_counter()
    key = Key.here(str(model.device))
    own = [
        record
        for record in database.records()
        if record.task.get("fingerprint") == model.fingerprint and key.fits(record)
    ]
    space = network_space(num_cores(), (precision,))
    by_size: dict[int, list[Record]] = {}
    for record in own:
        if record.task.get("stage") == NETWORK and objection_to(record.config, space, model) is None:
            size = _batch_size(record)
            if size and same(record.task, network_task(model, size)):
                by_size.setdefault(size, []).append(record)
    bests = {size: best for size, records in by_size.items() if (best := best_of(records))}
    nearest = min(bests, key=lambda size: abs(math.log(size / max(1, batch_size))), default=None)
    network = None if nearest is None else bests[nearest]
    config = space.default if network is None else network.config
    places, task = pipeline_space(model, num_cores()), pipeline_task(model, config)
    pipeline = best_of(
        record
        for record in own
        if record.task.get("stage") == PIPELINE and same(record.task, task) and record.config in places
    )
    return BestKnown(network, pipeline, time.perf_counter() - begin)


def _batch_size(record: Record) -> int:
    """0 where its task is of no form that is known."""
    match record.task.get("shapes"):
        case [[int(size), *_]] if size > 0:
            return size
    return 0
