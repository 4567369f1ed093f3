"""Tiny models for tests of tenants. They name the shade of a uniform image, so a result tells which image it is of."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.detections import Detections
from split_infer_ros.models.entry import ModelEntry

SHADES = tuple(range(20, 256, 30))  # of uint8


class _Shades(nn.Module):
    """Finds the nearest of ``SHADES``, whose values it knows after pre-processing."""

    image_size = 16

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.labels = [f"{kind}{shade}" for shade in SHADES]
        mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
        preprocessed = (torch.tensor(SHADES)[:, None] / 255 - mean) / deviation
        self.pool = nn.Sequential(nn.AvgPool2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.nearest = nn.Linear(3, len(SHADES))
        with torch.no_grad():  # the logits are 50 (2 <shade, image> - |shade|^2)
            self.nearest.weight.copy_(100 * preprocessed)
            self.nearest.bias.copy_(-50 * preprocessed.square().sum(1))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.nearest(self.pool(images))
        return logits


def red() -> nn.Module:
    """Returns a model with labels that begin with ``red``."""
    return _Shades("red")


def green() -> nn.Module:
    """Returns a model with labels that begin with ``green``."""
    return _Shades("green")


def blue() -> nn.Module:
    """Returns a model with labels that begin with ``blue``."""
    return _Shades("blue")


def odd() -> ModelEntry:
    """Returns a detector that finds two boxes in each image: one with a NaN coordinate, and a square."""
    boxes = torch.tensor([[1.0, 2.0, torch.nan, 4.0], [1.0, 2.0, 3.0, 4.0]])
    detections = Detections(boxes, torch.tensor([0.9, 0.8]), torch.tensor([0, 1]))
    return replace(find_model("shapes"), name="odd", decode=lambda outputs, limits: [detections for _ in outputs[0]])
