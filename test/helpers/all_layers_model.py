"""A small model with every kind of layer that weight streaming treats differently, and its packed file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from networks import graph_of, network_of
from torch import Tensor, nn

from split_infer_ros.models.classifier import classify
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of, head_of
from split_infer_ros.weight_streaming.packed_partition import PackedPartition, open_packed
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

SIDE, WIDE = 16, 256
TILE_MB = 0.05


class Odd(nn.Module):
    """A classifier with layers that maps of several sizes share, layers that are tiled, and weights without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())
        self.down = nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.shared = nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.SiLU(), nn.Conv2d(32, WIDE, 1))
        self.wide = nn.Conv2d(WIDE, 64, 3, padding=1)  # 0.6 MB: tiled
        self.norm = nn.LayerNorm(64)
        self.scale = nn.Parameter(torch.rand(64))
        self.last = nn.Linear(64, 500)  # tiled as well

    def forward(self, images: Tensor) -> Tensor:
        large = self.stem(images)
        small = self.down(large)
        first, second = self.shared(large), self.shared(small)
        features = self.wide(first).mean((2, 3)) + second.mean((2, 3))[:, :64]
        return self.last(self.norm(features) * self.scale)  # type: ignore[no-any-return]


ENTRY = ModelEntry(
    name="odd",
    summary="",
    build=Odd,
    weights=None,
    preprocess=Preprocess(SIDE, SIDE),
    labels=tuple(map(str, range(500))),
    default_split_point="shared",
    decode=classify(SIDE, SIDE),
)


@dataclass
class PackedModel:
    """A model with seeded weights, its packed file, and images with different results.

    Attributes:
        model: the model.
        path: the packed file of its weights.
        images: the images, float32 (N, 3, SIDE, SIDE).
    """

    model: SplitModel
    path: Path
    images: Tensor

    def packed(self, head: bool = False) -> PackedPartition:
        extract = head_of if head else backbone_of
        partition = extract(graph_of(self.model), self.model.split_point("default" if head else "output"))
        return open_packed(network_of(self.model), partition, self.path, num_threads=1)

    def streamed(self, residency: Residency = Residency.ASYNCHRONOUS, **options: Any) -> StreamedPartition:
        packed = self.packed()
        return StreamedPartition.open(packed, plan_memory(residency, packed.block_sizes, packed.step_blocks), **options)

    def resident(self, images: Tensor) -> Tensor:
        (logits,) = self.model.backbone("output")(images)
        return logits  # type: ignore[no-any-return]
