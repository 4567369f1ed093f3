"""The form of images before normalisation, for engines that normalise images within the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PixelInput:
    """The form of a batch of images that are resized and not yet normalised: (batch size, height, width, 3).

    Attributes:
        dtype: uint8 or float32. The values are 0..255 in both.
        mean, std: mean and standard deviation of each channel, on the 0..1 scale. The network computes with
            (pixel / 255 - mean) / std.
    """

    dtype: np.dtype[Any]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def blank(self, shape: tuple[int, int, int]) -> NDArray[Any]:
        """Returns black images, (batch size, height, width, 3). ``shape`` is (batch size, height, width)."""
        return np.zeros((*shape, 3), self.dtype)
