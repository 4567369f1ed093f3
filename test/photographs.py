"""Real photographs, and weights under which a model's outputs depend on what it sees.

As built, a network says nearly the same of every image, so comparing two ways of running it would show nothing.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import skimage.data
import torch
from torch import Tensor, nn
from torch.nn import functional

LEAST_VARIATION = 0.05


@cache
def photographs() -> tuple[np.ndarray, ...]:
    """Photographs that ship with scikit-image, of six sizes: uint8 (height, width, 3), red first."""
    names = ("astronaut", "coffee", "chelsea", "rocket", "hubble_deep_field", "immunohistochemistry", "retina")
    found = tuple(np.ascontiguousarray(getattr(skimage.data, name)()) for name in names)
    for photograph in found:
        photograph.flags.writeable = False
    return found


def photograph_batch(height: int = 224, width: int = 224) -> Tensor:
    """All photographs as a model's input: float32 (7, 3, height, width), channels-last, about zero mean."""
    resized = [
        functional.interpolate(
            torch.tensor(photograph).permute(2, 0, 1)[None].float(), size=(height, width), mode="area"
        )
        for photograph in photographs()
    ]
    return ((torch.cat(resized) / 255 - 0.45) / 0.225).contiguous(memory_format=torch.channels_last)


def living_weights(model: nn.Module, images: Tensor, seed: int = 0) -> nn.Module:
    """Seeded weights whose outputs vary over the images: batch norms see them, all else starts afresh.

    Args:
        model: changed in place, and in eval mode afterwards.
        images: (N, C, H, W).
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model.eval()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=4 / module.in_features**0.5)
            elif isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.reset_parameters()
                module.momentum = None  # a plain mean of what is seen
                module.train()
        model(images)
    return model.eval()


def least_variation(outputs: Tensor) -> float:
    """Of (images, values), how much the value that varies least does: its standard deviation over the images."""
    return float(outputs.std(dim=0).min())
