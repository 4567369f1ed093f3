"""Models for tests of tenants, tiny: they name the shade of a uniform image, so that each result tells what it saw."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from split_infer_ros.models.catalogue import CATALOGUE
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.entry import ModelEntry

SHADES = tuple(range(20, 256, 30))  # of uint8


class _Shades(nn.Module):
    """The nearest of ``SHADES``, whatever the pre-processing made of them."""

    image_size = 16

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.labels = [f"{kind}{shade}" for shade in SHADES]
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        seen = (torch.tensor(SHADES)[:, None] / 255 - mean) / deviation
        self.pool = nn.Sequential(nn.AvgPool2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.nearest = nn.Linear(3, len(SHADES))
        with torch.no_grad():  # the logits are 50 (2 <seen, image> - |seen|^2)
            self.nearest.weight.copy_(100 * seen)
            self.nearest.bias.copy_(-50 * seen.square().sum(1))

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.nearest(self.pool(images))
        return found


def red() -> nn.Module:
    """The first of three models that are alike but for their labels."""
    return _Shades("red")


def green() -> nn.Module:
    """The second."""
    return _Shades("green")


def blue() -> nn.Module:
    """The third."""
    return _Shades("blue")


def odd() -> ModelEntry:
    """A detector that finds the same in each image: something that cannot be, and a square."""
    boxes = torch.tensor([[1.0, 2.0, torch.nan, 4.0], [1.0, 2.0, 3.0, 4.0]])
    found = Detections(boxes, torch.tensor([0.9, 0.8]), torch.tensor([0, 1]))
    return replace(CATALOGUE["shapes"], name="odd", decode=lambda outputs, limits: [found for _ in outputs[0]])
