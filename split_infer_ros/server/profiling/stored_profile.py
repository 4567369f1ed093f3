"""Gets the profile of a model on this machine from the database, or measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.runtime.cores import ANY_CORES, StageCores
from split_infer_ros.server.profiling.profiler import Profiler
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.profile import FindProfile, NotProfiledError, Profile
from split_infer_ros.split.profile_samples import PointSamples, from_records, make_profile, to_records


def profile_finder(
    model: SplitModel, database: Database, say: Callable[[str], object], cores: StageCores = ANY_CORES
) -> FindProfile:
    """Returns a function that finds the profile of a model in the database, or measures it.

    Args:
        model: the model, on its device.
        database: keeps the profiles.
        say: called with each line of progress.
        cores: the cores of each stage.
    """

    def find_profile(batch_sizes: Sequence[int], may_measure: bool) -> Profile:
        profiler = Profiler(model, say=lambda line: say(f"measuring {model.entry.name}, {line}"), cores=cores)
        return profile_model(profiler, batch_sizes, database, may_measure=may_measure)

    return find_profile


def profile_model(
    profiler: Profiler,
    batch_sizes: Sequence[int],
    database: Database | None = None,
    *,
    remeasure: bool = False,
    may_measure: bool = True,
) -> Profile:
    """Returns the profile of a model on this machine.

    Batch sizes in the database are read from it. The others are measured and stored.

    Args:
        profiler: measures the model.
        batch_sizes: the batch sizes that the profile must have.
        database: keeps the profiles; the user's own if None.
        remeasure: whether to measure batch sizes that the database already has.
        may_measure: whether to measure batch sizes that the database lacks.

    Raises:
        NotProfiledError: the database lacks a batch size that may not be measured.
        ConfigurationError: the memory is too small for a batch size.
    """
    database = database or Database()
    model, image, cores = profiler.model, profiler.image, profiler.cores
    stored = [] if remeasure else stored_samples(model, database, image, cores)
    samples = [each for each in stored if each.batch_size in batch_sizes]
    missing = sorted({*batch_sizes} - {each.batch_size for each in samples})
    if missing and not may_measure:
        raise NotProfiledError(
            f"{model.entry.name} was not measured yet on this machine at batch size {', '.join(map(str, missing))}, "
            f"and it cannot be measured while frames flow: start with split_point auto, or run the command profile "
            f"beforehand."
        )
    if missing:
        measured = profiler.measure(missing)
        keep_samples(measured, model, database, image, cores)
        samples += measured
    return make_profile(
        model=model.entry.name,
        device=str(model.device),
        split_points=model.split_points,
        samples=samples,
    )


def stored_samples(
    model: SplitModel, database: Database, image: Pixels | None = None, cores: StageCores = ANY_CORES
) -> list[PointSamples]:
    """Returns the samples of a model's profile in the database, at every batch size that is complete.

    Args:
        model: the model, on its device.
        database: keeps the profiles.
        image: an image like those with which the model was measured; a blank one of 640x480 pixels if None.
        cores: the cores on which each stage was measured.
    """
    return from_records(database.find(_key(model), _task(model, image, cores)), model.split_points)


def keep_samples(
    samples: Iterable[PointSamples],
    model: SplitModel,
    database: Database,
    image: Pixels | None = None,
    cores: StageCores = ANY_CORES,
) -> None:
    """Stores samples of a model's profile. For the arguments, see ``stored_samples``."""
    database.keep(to_records(samples, _key(model), _task(model, image, cores)), "the profile is")


def _key(model: SplitModel) -> Key:
    return Key.here(str(model.device))


def _task(model: SplitModel, image: Pixels | None, cores: StageCores) -> dict[str, Any]:
    image = image or Pixels.blank()
    task: dict[str, Any] = {
        "model": model.entry.name,
        "fingerprint": model.network.fingerprint,
        "stage": "split_points",
        "shapes": [[image.height, image.width, 3], list(model.entry.image_shape)],
        "precision": model.precision.value,
    }
    if model.execution_config != ExecutionConfig():
        task["form"] = model.execution_config.as_json()
    if cores != ANY_CORES:
        task["cores"] = cores.numbers[:2]
    return task
