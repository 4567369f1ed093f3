"""Images as they are before they are normalised, which an engine may do within its network."""

from __future__ import annotations

from dataclasses import dataclass

import torch

Colour = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class PixelInput:
    """The form of images (N, h, w, 3) that are resized and not yet normalised.

    Attributes:
        dtype: uint8, or float32, of 0..255.
        mean, std: of the network's channels, on the scale of 0..255. The network computes with (pixel - mean) / std.
    """

    dtype: torch.dtype
    mean: Colour
    std: Colour
