"""Checks the memory that a plan takes against the user's budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.pipeline.image_buffer import MB, NUM_IMAGE_BUFFERS, image_buffer_bytes
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.split.split_points import SplitPoint


def bytes_needed(settings: StageSettings, *, split_point: SplitPoint, place: Place, input_bytes: int) -> int:
    """Returns the memory that a plan takes on both sides: its slot pool, its staging and, on a GPU, image buffers.

    Image buffers are counted with their size for one image of 640x480.

    Args:
        settings: with the plan's batch size and number of slots.
        split_point: whose features the slots hold.
        place: the memory policy, and where the backbone runs.
        input_bytes: of one resized image.
    """
    slot_bytes = Layout(split_point.tensors, settings.batch_size).slot_bytes
    pool_bytes = settings.pool_slots * place.policy.footprint_bytes(slot_bytes)
    staging_bytes = settings.batch_size * input_bytes
    buffer_bytes = 0 if place.device.type == "cpu" else NUM_IMAGE_BUFFERS * image_buffer_bytes(place.policy)
    return pool_bytes + staging_bytes + buffer_bytes


def image_buffers_budget(
    settings: StageSettings, *, split_point: SplitPoint, place: Place, input_bytes: int, taken_bytes: float = 0.0
) -> float:
    """Returns the bytes of the budget that are left for image buffers on a GPU.

    Args:
        settings: with the budget, the plan's batch size and its number of slots.
        split_point: whose features the slots hold.
        place: the memory policy, and where the backbone runs.
        input_bytes: of one resized image.
        taken_bytes: of the budget, the part that other models have.
    """
    needed = bytes_needed(settings, split_point=split_point, place=place, input_bytes=input_bytes)
    return settings.memory_budget_bytes - taken_bytes - needed + NUM_IMAGE_BUFFERS * image_buffer_bytes(place.policy)


def check_budget(
    settings: StageSettings, *, split_point: SplitPoint, place: Place, input_bytes: int, taken_bytes: float = 0.0
) -> None:
    """Refuses a plan that takes more memory than the budget has left.

    Args:
        settings: with the budget, the plan's batch size and its number of slots.
        split_point: whose features the slots hold.
        place: the memory policy, and where the backbone runs.
        input_bytes: of one resized image.
        taken_bytes: of the budget, the part that other models have.

    Raises:
        ConfigurationError: the plan does not fit. The message says what would fit.
    """
    budget_bytes = settings.memory_budget_bytes

    def needed_bytes(settings: StageSettings) -> int:
        return bytes_needed(settings, split_point=split_point, place=place, input_bytes=input_bytes)

    def fits(settings: StageSettings) -> bool:
        return needed_bytes(settings) <= budget_bytes - taken_bytes

    if fits(settings):
        return
    min_budget = taken_bytes + needed_bytes(replace(settings, batch_size=1, pool_slots=1))
    fitting = _find_fitting(settings, fits) or f"another split_point, or a budget of {min_budget / MB:,.1f}"
    others = f", of which other models have {taken_bytes / MB:,.1f}" if taken_bytes else ""
    raise ConfigurationError(
        f"Features and staging take {needed_bytes(settings) / MB:,.1f} MB at split_point {split_point.name}, "
        f"batch_size {settings.batch_size} and pool_slots {settings.pool_slots}, more than the memory_budget_mb "
        f"of {budget_bytes / MB:,.1f}{others}: {fitting} would fit."
    )


def _find_fitting(settings: StageSettings, fits: Callable[[StageSettings], bool]) -> str:
    """Returns smaller settings that fit, in words; empty if there are none."""
    for size in range(settings.batch_size - 1, 0, -1):
        if fits(replace(settings, batch_size=size)):
            return f"batch_size {size}"
    for slots in range(settings.pool_slots - 1, 0, -1):
        if fits(replace(settings, pool_slots=slots)):
            return f"pool_slots {slots}"
    return "batch_size 1 with pool_slots 1" if fits(replace(settings, batch_size=1, pool_slots=1)) else ""


def check_weights(name: str, *, parameters: int, item_bytes: int, free_bytes: int) -> None:
    """Refuses a backbone whose weights do not fit into the GPU's free memory.

    Args:
        name: of the model.
        parameters: number of the backbone's parameters.
        item_bytes: bytes of a parameter.
        free_bytes: the GPU's free memory.

    Raises:
        ConfigurationError: the weights do not fit. The message says what would fit.
    """
    needed = parameters * item_bytes
    if needed > free_bytes:
        raise ConfigurationError(
            f"The weights of {name} before its split point take {needed / MB:,.1f} MB, and {free_bytes / MB:,.1f} MB "
            f"are left on the GPU: {free_bytes / item_bytes / 1e6:,.1f} million parameters would fit; these are "
            f"{parameters / 1e6:,.1f}."
        )
