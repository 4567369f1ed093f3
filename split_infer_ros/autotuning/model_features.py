"""Describes a model by a few numbers. With them, the cost model can learn from similar models."""

from __future__ import annotations

import math

from split_infer_ros.split.graph_network import GraphNetwork
from split_infer_ros.split.model import SplitModel


def model_features(model: SplitModel) -> dict[str, float]:
    """Returns a model's sizes as logarithms to base 10, and the shares of kinds of convolutions, from 0 to 1.

    The sizes are parameters, pixels of an image, and convolutions. An ONNX model has only parameters and pixels. In all
    numbers, a difference of 1 between two models is large.
    """
    _, height, width = model.entry.image_shape
    sizes = {"parameters": math.log10(max(1, model.network.num_parameters())), "pixels": math.log10(height * width)}
    if isinstance(model.network, GraphNetwork):
        return sizes
    from torch import nn  # only here: a process with an ONNX model may have no torch

    from split_infer_ros.split.torch_network import TorchNetwork

    if not isinstance(model.network, TorchNetwork):
        return sizes
    convolutions = [module for module in model.network.graph.module.modules() if isinstance(module, nn.Conv2d)]
    count = max(1, len(convolutions))
    return {
        **sizes,
        "convolutions": math.log10(count),
        "depthwise": sum(1 < c.groups == c.in_channels for c in convolutions) / count,
        "pointwise": sum(c.kernel_size == (1, 1) for c in convolutions) / count,
    }
