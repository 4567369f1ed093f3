"""A model of a cost table: what its costs depend on, and the images with which they are measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from split_infer_ros.engines.compute import Images
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Convolutions
from split_infer_ros.engines.precision import Precision
from split_infer_ros.images.pixel_input import PixelInput
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.machine import engine_version

BlankImages = Callable[[int], Images]  # returns a batch of so many black images, as a backbone takes them


@dataclass(frozen=True, slots=True)
class TableModel:
    """A model that was added to a cost table. ``of`` describes a model.

    Attributes:
        kind: describes it without its name.
        parameters: the number of its parameters.
        blank_images: makes its images.
        has_lanes: whether it can be computed on lanes.
    """

    kind: str
    parameters: int
    blank_images: BlankImages
    has_lanes: bool

    @classmethod
    def of(cls, model: SplitModel, variant: str, pixels: PixelInput | None, *, has_lanes: bool) -> TableModel:
        """Describes a model, with the arguments of ``CostTable.add_model``."""
        blank_images: BlankImages = model.blank_images
        if pixels is not None:
            blank_images = partial(_blank_pixels, pixels, model.image_shape[1:])
        return cls(kind_of(model, variant), model.network.num_parameters(), blank_images, has_lanes)


def kind_of(model: SplitModel, variant: str) -> str:
    """Returns the text that stands for a model in a cost key.

    The text names the network's fingerprint and ``variant``. It also names an engine other than torch with its version,
    a precision other than fp32, and merged layers. It does not name the model, so models of the same network share
    their costs.

    Args:
        model: the model.
        variant: what the costs depend on besides the model, as ``Plan.cost_key`` gives it.
    """
    config, kind = model.execution_config, f"{model.network.fingerprint} at {variant}"
    if config.engine is not Engine.TORCH:
        kind += f" on {config.engine_text} {engine_version(config.engine.value)}"
    if config.precision is not Precision.FP32:
        kind += f" in {config.precision.value}"
    if config.convolutions is Convolutions.MERGED:
        kind += " with merged layers"
    return kind


def _blank_pixels(pixels: PixelInput, size: tuple[int, int], batch_size: int) -> Images:
    return pixels.blank((batch_size, *size))
