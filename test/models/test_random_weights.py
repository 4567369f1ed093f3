"""Untrained weights whose outputs depend on the images."""

from __future__ import annotations

import torch
from torch import nn

from split_infer_ros.models.random_weights import randomise
from split_infer_ros.runtime.num_threads import run_with_threads


def make(num_threads: int) -> nn.Module:
    images = torch.rand(8, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)  # of the biases, which stay as built
    layers = (nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return run_with_threads(num_threads, lambda: randomise(nn.Sequential(*layers, nn.Linear(32, 5)), images))


def test_model_may_be_built_in_inference_mode() -> None:
    with torch.inference_mode():
        model = randomise(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), torch.rand(2, 3, 8, 8))
    assert all(tensor.is_inference() for tensor in model.state_dict().values())


def test_weights_do_not_depend_on_the_number_of_threads() -> None:
    """Equal to the bit, so that exports of another process are found again."""
    first, second = make(1).state_dict(), make(2).state_dict()
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["1.running_mean"].std() > 0
