"""A small torch network that other engines run as well. Two feature maps cross at its split point ``left``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

CPU = torch.device("cpu")
SIDE = 32  # of an image
SEED = 3
PREPROCESS = Preprocess(SIDE, SIDE)


class TwoRoads(nn.Module):
    """A network with two branches: one passes by two blocks. The logits are about 1 in size and depend on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU6())
        self.left = nn.Sequential(nn.Conv2d(8, 16, 3, 1, 1), nn.SiLU())
        self.right = nn.Sequential(nn.Conv2d(16, 8, 3, 1, 1), nn.Hardswish())
        self.last = nn.Linear(8, 7)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.right(self.left(x))
        return 4 * self.last(x.mean((2, 3)))


def two_roads(config: ExecutionConfig, preprocess: Preprocess = PREPROCESS) -> SplitModel:
    """Returns the model on the CPU, with the same weights at each call. ``config`` says how it runs."""
    torch.manual_seed(SEED)
    entry = ModelEntry(
        name="two_roads",
        summary="",
        build=TwoRoads,
        weights=None,
        preprocess=preprocess,
        labels=tuple("abcdefg"),
        default_split_point="left",
        decode=classify(SIDE, SIDE),
    )
    return SplitModel(TorchNetwork(entry, TwoRoads().eval()), CPU, config)
