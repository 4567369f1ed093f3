"""Small models of one architecture with different weights, like one network that was fine-tuned for each camera."""

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
        name: the name of the model in the catalogue.
        seed: the seed of the weights.
        side: the side of an image, in pixels.
        config: the execution config; None for the default.
    """
    entry, module = build_model(ModelSpec(name, "none"))
    entry = replace(entry, preprocess=replace(entry.preprocess, height=side, width=side))
    images = torch.rand((2, *entry.image_shape), generator=torch.Generator().manual_seed(seed))
    return SplitModel(TorchNetwork(entry, randomise(module, images, seed)), CPU, config)


def seeded_models(name: str, count: int, *, side: int = 64) -> dict[str, SplitModel]:
    """Returns ``count`` models from ``seeded_model`` with different weights, by name: ``a``, ``b`` and so on."""
    return {chr(ord("a") + seed): seeded_model(name, seed, side=side) for seed in range(count)}
