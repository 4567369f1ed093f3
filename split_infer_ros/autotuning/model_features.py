"""Describes a model by a few numbers, so that the cost model can learn from similar models."""

from __future__ import annotations

import math

from torch import fx, nn


def model_features(graph: fx.GraphModule, image_shape: tuple[int, int, int]) -> dict[str, float]:
    """Returns numbers whose differences by 1 matter: sizes as powers of ten, and the shares of kinds of convolutions.

    Args:
        graph: the model.
        image_shape: (C, H, W).
    """
    convolutions = [module for module in graph.modules() if isinstance(module, nn.Conv2d)]
    count = max(1, len(convolutions))
    return {
        "parameters": math.log10(max(1, sum(parameter.numel() for parameter in graph.parameters()))),
        "convolutions": math.log10(count),
        "depthwise": sum(1 < c.groups == c.in_channels for c in convolutions) / count,
        "pointwise": sum(c.kernel_size == (1, 1) for c in convolutions) / count,
        "pixels": math.log10(image_shape[1] * image_shape[2]),
    }
