"""Small models of one architecture with different weights, as of one network that was tuned for each camera."""

from __future__ import annotations

from dataclasses import replace

import torch

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.models.random_weights import randomise
from split_infer_ros.split.load import build_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_network import TorchNetwork

CPU = torch.device("cpu")


def seeded_model(name: str, seed: int, *, side: int = 64, config: ExecutionConfig | None = None) -> SplitModel:
    """Returns a model of the catalogue on the CPU whose results depend on its images.

    Args:
        name: of the catalogue.
        seed: of the weights.
        side: of an image, in pixels.
        config: how it runs.
    """
    entry, module = build_model(ModelSpec(name, "none"))
    entry = replace(entry, preprocess=replace(entry.preprocess, height=side, width=side))
    images = torch.rand((2, *entry.image_shape), generator=torch.Generator().manual_seed(seed))
    return SplitModel(TorchNetwork(entry, randomise(module, images, seed)), CPU, config)


def seeded_models(name: str, count: int, *, side: int = 64) -> dict[str, SplitModel]:
    """Returns several such models by name: ``a``, ``b`` and so on."""
    return {chr(ord("a") + seed): seeded_model(name, seed, side=side) for seed in range(count)}
