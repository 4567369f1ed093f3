"""A batch as a backbone gets it: what all pre-processors return."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.runtime.streams import Fence


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A pre-processed batch.

    Attributes:
        images: (N, 3, h, w) on the backbone's device; (N, h, w, 3) of 0..255 for a backbone that normalises them.
        ready: the fence from which on ``images`` holds the batch.
    """

    images: Tensor
    ready: Fence


def model_input(
    preprocess: Preprocess,
    gathered: Tensor,
    *,
    dtype: torch.dtype,
    memory_format: torch.memory_format,
    into: GraphInput | None,
) -> Tensor:
    """Returns resized images as the model's input: normalised, (n, 3, h, w), in the backbone's precision.

    Args:
        preprocess: how the model's images are pre-processed.
        gathered: the resized images, (n, h, w, 3).
        dtype: the backbone's precision.
        memory_format: the layout of the backbone's input.
        into: a graph's input, where the result is written; None for new memory.
    """
    if into is None:
        return preprocess.normalise(gathered, memory_format).to(dtype)
    images = into.images[: len(gathered)]
    if dtype != torch.float32:
        return images.copy_(preprocess.normalise(gathered, memory_format))
    return preprocess.normalise(gathered, memory_format, out=images)
