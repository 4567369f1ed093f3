"""What a plan takes of memory, and whether that is within the user's budget."""

from __future__ import annotations

from dataclasses import replace

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.pipeline.preprocessor import BUFFERS, raw_bytes
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.split.split_points import SplitPoint

MB = 1e6


def bytes_needed(settings: StageSettings, split_point: SplitPoint, place: Place, input_bytes: int) -> int:
    """Returns the bytes of slot pool, staging and, on a GPU, buffers for images of 640x480, on both sides.

    Args:
        settings: whose batch size and slots count.
        cut: what crosses.
        place: the policy, and where the backbone runs.
        input_bytes: of one resized image.
    """
    slot_bytes = Layout(split_point.tensors, settings.batch_size).slot_bytes
    pool = settings.pool_slots * place.policy.footprint_bytes(slot_bytes)
    raw = 0 if place.device.type == "cpu" else BUFFERS * raw_bytes(place.policy)
    return pool + settings.batch_size * input_bytes + raw


def left_for_images(
    settings: StageSettings, split_point: SplitPoint, place: Place, input_bytes: int, taken_bytes: float = 0.0
) -> float:
    """What the budget leaves to the buffers for images on a GPU, bytes; arguments as ``check_budget``'s."""
    needed = bytes_needed(settings, split_point, place, input_bytes)
    return settings.memory_budget_bytes - taken_bytes - needed + BUFFERS * raw_bytes(place.policy)


def check_budget(
    settings: StageSettings, split_point: SplitPoint, place: Place, input_bytes: int, taken_bytes: float = 0.0
) -> None:
    """Refuse what takes more than ``memory_budget_mb``, of which other models have ``taken_bytes``.

    Raises:
        ConfigurationError: it does; the sentence says what would fit.
    """
    budget, needed = settings.memory_budget_bytes, bytes_needed(settings, split_point, place, input_bytes)
    if needed <= budget - taken_bytes:
        return
    left = replace(settings, memory_budget_bytes=budget - taken_bytes)
    fits = _what_fits(left, taken_bytes, split_point, place, input_bytes)
    others = f", of which other models have {taken_bytes / MB:,.1f}" if taken_bytes else ""
    raise ConfigurationError(
        f"Features and staging take {needed / MB:,.1f} MB at split_point {split_point.name}, batch_size "
        f"{settings.batch_size} and pool_slots {settings.pool_slots}, more than the memory_budget_mb "
        f"of {budget / MB:,.1f}{others}: {fits} would fit."
    )


def _what_fits(
    settings: StageSettings, taken_bytes: float, split_point: SplitPoint, place: Place, input_bytes: int
) -> str:
    for size in range(settings.batch_size - 1, 0, -1):
        if (
            bytes_needed(replace(settings, batch_size=size), split_point, place, input_bytes)
            <= settings.memory_budget_bytes
        ):
            return f"batch_size {size}"
    for slots in range(settings.pool_slots - 1, 0, -1):
        if (
            bytes_needed(replace(settings, pool_slots=slots), split_point, place, input_bytes)
            <= settings.memory_budget_bytes
        ):
            return f"pool_slots {slots}"
    least = bytes_needed(replace(settings, batch_size=1, pool_slots=1), split_point, place, input_bytes)
    if least <= settings.memory_budget_bytes:
        return "batch_size 1 with pool_slots 1"
    return f"another split_point, or a budget of {(taken_bytes + least) / MB:,.1f}"


def check_weights(name: str, parameters: int, item_bytes: int, free_bytes: int) -> None:
    """Refuse a backbone whose weights do not fit into what is left of a GPU's memory.

    Args:
        name: of the model.
        parameters: of what lies on the GPU.
        item_bytes: of each.
        free_bytes: that are left.

    Raises:
        ConfigurationError: they do not; the sentence says what would fit.
    """
    needed = parameters * item_bytes
    if needed > free_bytes:
        raise ConfigurationError(
            f"The weights of {name} before its split point take {needed / MB:,.1f} MB, and {free_bytes / MB:,.1f} MB "
            f"are left on the GPU: {free_bytes / item_bytes / 1e6:,.1f} million parameters would fit; these are "
            f"{parameters / 1e6:,.1f}."
        )
