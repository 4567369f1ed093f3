"""Weights of no training whose outputs depend on what the model sees.

As built, a network says nearly the same of every image, so two ways of running it agree whatever they do.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NORM_BIAS = 0.5  # lets most pass a ReLU; with none, rounding grows ten times as much on its way through a ResNet
LOGIT_STD = 3.0  # of all logits over all calibration images; a trained classifier's is of this size


def randomise(model: nn.Module, images: Tensor, seed: int = 0) -> nn.Module:
    """Give a model seeded weights under which its outputs vary over images.

    Convolutions and linear layers start afresh, batch norms are set by what they see, and the last layer of a
    classifier is centred on the images, so that each gets a class of its own.

    Args:
        model: changed in place, and in eval mode afterwards.
        images: (N, C, H, W), several that differ, as the model's pre-processing gives them.
        seed: the same seed and images give the same weights.

    Returns:
        The model.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model.eval()
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")
            elif isinstance(module, nn.Linear):
                nn.init.kaiming_normal_(module.weight)
            elif isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.reset_parameters()
                nn.init.constant_(module.bias, NORM_BIAS)
                module.momentum = None  # a plain mean of what is seen
                module.train()
        model(images)
        model.eval()
        _centre_logits(model, images)
    return model


def _centre_logits(model: nn.Module, images: Tensor) -> None:
    """Scale and shift the layer that runs last, if its classes are all that the model gives."""
    last: list[tuple[nn.Conv2d | nn.Linear, Tensor]] = []

    def remember(layer: nn.Conv2d | nn.Linear, _: object, output: Tensor) -> None:
        last[:] = [(layer, output.clone())]  # what follows may work in place

    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(remember) for layer in layers]
    outputs = model(images)
    for hook in hooks:
        hook.remove()
    ((layer, logits),) = last
    if not isinstance(outputs, Tensor) or layer.bias is None:
        return
    mean = logits.transpose(0, 1).flatten(1).mean(1)  # over images and, of a convolution, positions
    scale = LOGIT_STD / (logits - mean.view(-1, *[1] * (logits.dim() - 2))).std()
    layer.bias.copy_(scale * (layer.bias - mean))
    layer.weight.mul_(scale)
