"""Checks whether a plan fits into the user's memory budget, and whether weights fit into the GPU's free memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.preprocessing.image_buffer import MB, NUM_IMAGE_BUFFERS, image_buffer_bytes
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.split.split_points import SplitPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBudget:
    """The part of the user's memory budget that a plan takes.

    Attributes:
        settings: the settings, with the budget, the batch size and the number of slots.
        split_point: the split point of the features in the slots.
        place: the memory policy, and the device on which the backbone runs.
        input_bytes: bytes of one resized image.
        graph_input_bytes: bytes of one image in a graph's input; 0 if nothing is recorded.
        taken_bytes: the part of the budget that other models use.
    """

    settings: StageSettings
    split_point: SplitPoint
    place: Place
    input_bytes: int
    graph_input_bytes: int = 0
    taken_bytes: float = 0.0

    @property
    def needed_bytes(self) -> int:
        """Bytes that the plan takes on CPU and GPU together: slots and staging buffer.

        With a GPU, also image buffers (raw images on their way to the GPU) and inputs of graphs, one for each slot.
        Image buffers are counted with their size for one image of 640x480.
        """
        settings, policy = self.settings, self.place.policy
        slot_bytes = Layout(self.split_point.tensors, settings.batch_size).slot_bytes
        graphs_bytes = settings.batch_size * self.graph_input_bytes
        pool_bytes = settings.pool_slots * (policy.footprint_bytes(slot_bytes) + graphs_bytes)
        staging_bytes = settings.batch_size * self.input_bytes
        buffer_bytes = 0 if self.place.device.type == "cpu" else NUM_IMAGE_BUFFERS * image_buffer_bytes(policy)
        return pool_bytes + staging_bytes + buffer_bytes

    @property
    def image_buffers_bytes(self) -> float:
        """Bytes of the budget that are left for image buffers on a GPU."""
        counted = NUM_IMAGE_BUFFERS * image_buffer_bytes(self.place.policy)
        return self.settings.memory_budget_bytes - self.taken_bytes - self.needed_bytes + counted

    def check(self) -> None:
        """Refuses a plan that takes more memory than the budget has left.

        Raises:
            ConfigurationError: the plan does not fit. The message says what would fit.
        """
        settings, budget_bytes = self.settings, self.settings.memory_budget_bytes

        def needed_bytes(settings: StageSettings) -> int:
            return replace(self, settings=settings).needed_bytes

        def fits(settings: StageSettings) -> bool:
            return needed_bytes(settings) <= budget_bytes - self.taken_bytes

        if fits(settings):
            return
        min_budget = self.taken_bytes + needed_bytes(replace(settings, batch_size=1, pool_slots=1))
        fitting = _find_fitting(settings, fits) or f"another split_point, or a budget of {min_budget / MB:,.1f}"
        others = f", of which other models have {self.taken_bytes / MB:,.1f}" if self.taken_bytes else ""
        raise ConfigurationError(
            f"Features and staging take {self.needed_bytes / MB:,.1f} MB at split_point {self.split_point.name}, "
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
        name: the name of the model.
        parameters: number of the backbone's parameters.
        item_bytes: bytes of one parameter.
        free_bytes: bytes of the GPU's free memory.

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
