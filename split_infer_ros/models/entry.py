"""What the package knows of a model: how to build it, feed it and read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.preprocess import Preprocess

Decode = Callable[[tuple[Tensor, ...], Limits], list[Detections]]


@dataclass(frozen=True, slots=True)
class Weights:
    """Where a model's trained weights come from, in one of three ways; by default there are none.

    Attributes:
        path: of a file in this package.
        url: of a file that is downloaded once.
        file_name: under which the download is kept in torch.hub's folder of checkpoints.
        fetch: another library's own way to them; returns a state dict.
    """

    path: Path | None = None
    url: str | None = None
    file_name: str | None = None
    fetch: Callable[[], Mapping[str, Tensor]] | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model.

    Attributes:
        name: by which users ask for it.
        summary: one line for people.
        build: makes the module, untrained; takes float32 (N, 3, h, w), gives a tensor or a tuple of tensors.
        weights: the trained ones; None if it is built with them.
        preprocess: how images become its input.
        labels: the name of each label index.
        default_split_point: what is taken unless the user says otherwise; None takes the last one before ``output``.
        decode: outputs of a batch, and limits, to detections in pixels of the input; they own their memory, for
            that of the outputs may be the next batch's.
    """

    name: str
    summary: str
    build: Callable[[], nn.Module]
    weights: Weights | None
    preprocess: Preprocess
    labels: tuple[str, ...]
    default_split_point: str | None
    decode: Decode

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the model's input."""
        return 3, self.preprocess.height, self.preprocess.width
