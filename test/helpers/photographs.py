"""Real photographs, and a measure of how much a model's outputs vary over images."""

from __future__ import annotations

from functools import cache

import numpy as np
import skimage.data
import torch
from torch import Tensor
from torch.nn import functional

LEAST_VARIATION = 0.05


@cache
def photographs() -> tuple[np.ndarray, ...]:
    """Returns seven photographs that ship with scikit-image, of six sizes: uint8 (height, width, 3) in RGB."""
    names = ("astronaut", "coffee", "chelsea", "rocket", "hubble_deep_field", "immunohistochemistry", "retina")
    found = tuple(np.ascontiguousarray(getattr(skimage.data, name)()) for name in names)
    for photograph in found:
        photograph.flags.writeable = False
    return found


def photograph_batch(height: int = 224, width: int = 224) -> Tensor:
    """Returns all photographs as a model's input: float32 (7, 3, height, width), channels last, mean about 0."""
    resized = [
        functional.interpolate(
            torch.tensor(photograph).permute(2, 0, 1)[None].float(), size=(height, width), mode="area"
        )
        for photograph in photographs()
    ]
    return ((torch.cat(resized) / 255 - 0.45) / 0.225).contiguous(memory_format=torch.channels_last)


def least_variation(outputs: Tensor) -> float:
    """Returns the smallest standard deviation of any value over the images. ``outputs`` is (images, values)."""
    return float(outputs.std(dim=0).min())
