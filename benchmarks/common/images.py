"""Draws images for models, in the size that an image has before the model's pre-processing crops it."""

from __future__ import annotations

import torch
from torch.nn import functional

from split_infer_ros.images.encodings import RGB, Pixels
from split_infer_ros.models.entry import ModelEntry


def draw_images(entry: ModelEntry, count: int) -> list[Pixels]:
    """Draws images of smooth shapes and textures in all colours, RGB, uint8. Equal counts give equal images.

    An image is square. Its side is the length to which the model's pre-processing resizes images before it crops them.
    """
    side = entry.preprocess.shorter_side or entry.preprocess.height
    generator = torch.Generator().manual_seed(0)
    images = []
    for _ in range(count):
        layers = torch.zeros(1, 3, side, side)
        for cells in (2, 4, 8, 32):
            noise = torch.randn(1, 3, cells, cells, generator=generator) * torch.rand(1, generator=generator)
            layers += functional.interpolate(noise, size=(side, side), mode="bicubic")
        data = (127 + 90 * layers / layers.std()).clamp(0, 255).to(torch.uint8)
        images.append(Pixels(data[0].permute(1, 2, 0).contiguous().numpy(), RGB))
    return images
