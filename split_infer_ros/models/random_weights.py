"""Gives a model untrained weights with which its outputs depend on its images.

A network as built gives nearly the same output for every image. Two executions of it would then agree even if one of
them is wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from split_infer_ros.runtime.num_threads import run_with_threads

NORM_BIAS = 0.5  # lets most values pass a ReLU; without it, rounding errors grow ten times as much in a ResNet
LOGIT_STD = 3.0  # of all logits over all calibration images; a trained classifier has about the same


def randomise(model: nn.Module, images: Tensor, seed: int = 0) -> nn.Module:
    """Gives a model seeded weights with which its outputs vary over images.

    Convolutions and linear layers are initialised again. Batch norms take the statistics of the images. The last layer
    of a classifier is scaled and shifted, so that each class has the mean logit 0 over the images. Different images
    then get different classes.

    One thread computes the weights, because sums depend on the number of threads. So all processes of a machine get the
    same bits, and each can use the graphs that another process has exported.

    Args:
        model: changed in place, and in eval mode afterwards.
        images: (N, C, H, W), several different ones, as the model's pre-processing gives them.
        seed: the same seed and images give the same weights.

    Returns:
        The model.
    """
    is_inference = torch.is_inference_mode_enabled()  # a thread's own setting
    run_with_threads(1, lambda: _randomise(model, images, seed, is_inference))
    return model


def _randomise(model: nn.Module, images: Tensor, seed: int, is_inference: bool) -> None:
    with torch.random.fork_rng(devices=[]), torch.inference_mode(is_inference), torch.no_grad():
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
                module.momentum = None  # statistics are a plain mean over the images
                module.train()
        outputs = model(images)
        model.eval()
        if isinstance(outputs, Tensor):
            _centre_logits(model, images)


def _centre_logits(model: nn.Module, images: Tensor) -> None:
    """Scales and shifts the layer that runs last, if it has a bias: it gives the logits, the model's only output."""
    last: list[tuple[nn.Conv2d | nn.Linear, Tensor]] = []

    def record(layer: nn.Conv2d | nn.Linear, _: object, output: Tensor) -> None:
        last[:] = [(layer, output.clone())]  # later operations can work in place

    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    model(images)
    for hook in hooks:
        hook.remove()
    ((layer, logits),) = last
    if layer.bias is None:
        return
    mean = logits.transpose(0, 1).flatten(1).mean(1)  # over images and, for a convolution, over positions
    scale = LOGIT_STD / (logits - mean.view(-1, *[1] * (logits.dim() - 2))).std()
    layer.bias.copy_(scale * (layer.bias - mean))
    layer.weight.mul_(scale)
