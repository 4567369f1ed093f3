"""Times a saturated pipeline with a configuration."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

from split_infer_ros.autotuning.lane_run import WARM_UP
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.steady import measure_steadily
from split_infer_ros.models.detections import Detections
from split_infer_ros.runtime.num_threads import use_threads
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.model import SplitModel

BATCH_TIMEOUT_S = 60.0


def time_pipeline(model: SplitModel, config: Mapping[str, Any], end: float) -> dict[str, Any]:
    """Times a pipeline, and returns ``costs`` in seconds per image, and whether they are ``uncertain``.

    Args:
        model: the model.
        config: a configuration of the pipeline's space.
        end: when an uncertain measurement is not repeated any more, in seconds of the steady clock.

    Raises:
        ConfigurationError: the model cannot run so.
    """
    use_threads(1)  # like every thread that starts a pipeline
    settings = StageSettings(
        split_point=config["split_point"],
        batch_size=config["batch_size"],
        batch_timeout_s=BATCH_TIMEOUT_S,
        drop_policy=DropPolicy.BLOCK,
        memory_policy=config["memory_policy"],
        cuda_graphs=config["cuda_graphs"],
    )
    model, threads = model.with_threads(config["backbone_threads"]), config["head_threads"]
    return measure_steadily(lambda: _periods(model, settings, threads), lambda: time.monotonic() < end).as_json()


def _periods(model: SplitModel, settings: StageSettings, head_threads: int) -> list[float]:
    """Returns the seconds per image in a saturated pipeline: one sample per batch, without the first batches."""
    size, batches = settings.batch_size, 2 * WARM_UP + 2
    ends: list[float] = []

    def deliver(origin: Origin, detections: Detections) -> None:
        if origin.header % size == size - 1:
            ends.append(time.monotonic())

    with LocalPipeline(model, settings, deliver, head_threads=head_threads) as pipeline:
        pipeline.feed(itertools.repeat(Pixels.blank(), size * batches))
        pipeline.finish()
    return [(later - sooner) / size for sooner, later in itertools.pairwise(ends[WARM_UP - 1 :])]
