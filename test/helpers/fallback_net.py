"""A small network with an operator in its middle that the list of operators puts on the CPU."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.classifier import classify
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork

SIDE = 12


class Sorting(nn.Module):
    """Sorts the channels of every pixel between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 6, 3)
        self.last = nn.Linear(6, 4)

    def forward(self, images: Tensor) -> Tensor:
        ordered = self.first(images).relu().sort(dim=1).values
        return self.last(self.second(ordered).mean((2, 3)))  # type: ignore[no-any-return]


def sorting_model() -> SplitModel:
    """Returns the model on the CPU, with seeded weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Sorting().eval()
    entry = replace(
        find_model("mobilenet_v2"),
        name="sorting",
        preprocess=Preprocess(SIDE, SIDE),
        labels=tuple("abcd"),
        default_split_point="second",
        decode=classify(SIDE, SIDE),
    )
    return SplitModel(TorchNetwork(entry, module))


def images(count: int) -> Tensor:
    """Returns seeded noise, float32 (N, 3, 12, 12), channels last."""
    noise = torch.rand((count, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(count))
    return noise.contiguous(memory_format=torch.channels_last)
