"""The profile of a model on this machine: from the database as far as it is there, else measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.models.detections import Limits
from split_infer_ros.pipeline.profiler import Effort, Profiler, ignore
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.profile import Profile
from split_infer_ros.split.profile_samples import from_records, make_profile, to_records


def profile_model(
    model: SplitModel,
    batch_sizes: Sequence[int],
    database: Database | None = None,
    picture: Pixels | None = None,
    limits: Limits | None = None,
    effort: Effort | None = None,
    anew: bool = False,
    may_measure: bool = True,
    say: Callable[[str], object] = ignore,
) -> Profile:
    """The profile of a model on this machine, from the database as far as it is there; the rest is measured and kept.

    Args:
        model: on its device.
        batch_sizes: those that are needed.
        database: the user's own if None.
        picture: what the cameras send; unless said otherwise a blank one of 640x480 pixels.
        limits: what post-processing keeps.
        effort: how much to measure.
        anew: measure whatever the database has.
        may_measure: take only what the database has.
        say: told what is being done, a line at a time.

    Raises:
        ConfigurationError: a batch size is too large for the memory, or not in the database and not to be measured.
    """
    database = database or Database()
    picture = picture or Pixels.blank()
    key = Key.here(str(model.device))
    task: dict[str, Any] = {
        "model": model.entry.name,
        "fingerprint": model.fingerprint,
        "stage": "split_points",
        "shapes": [[picture.height, picture.width, 3], list(model.entry.image_shape)],
        "precision": str(model.dtype).removeprefix("torch."),
    }
    if model.form != ExecutionConfig():
        task["form"] = asdict(model.form)
    stored = [] if anew else from_records(database.find(key, task), model.split_points)
    samples = [found for found in stored if found.batch_size in batch_sizes]
    missing = sorted({*batch_sizes} - {found.batch_size for found in samples})
    if missing and not may_measure:
        raise ConfigurationError(
            f"{model.entry.name} was not measured yet on this machine at batch size {', '.join(map(str, missing))}, "
            f"and cannot be while frames flow: start with split_point auto, or run the command profile beforehand."
        )
    if missing:
        measured = Profiler(model, picture, limits, effort, say).measure(missing)
        database.keep(to_records(measured, key, task), "the profile is")
        samples += measured
    return make_profile(model.entry.name, str(model.device), model.split_points, samples)
