"""What YOLOv3 and YOLOv4 share: the building blocks of Darknet, the predictions, and how boxes are decoded from them.

A network has maps at three strides. Each cell of a map has three anchors. For each anchor, the network predicts a box,
the objectness (whether an object is there), and a score for each class. Classes do not exclude each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from split_infer_ros.models.candidates import Candidates, SuppressOverlaps
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess

LABELS = tuple((Path(__file__).with_name("data") / "coco.txt").read_text().splitlines())
SIZE = 416  # pixels of the input's sides
CLASSES = len(LABELS)
NUMBERS = 5 + CLASSES  # predicted for each anchor: 4 of the box, the objectness, and one for each class
SLOPE = 0.1  # of the leaky ReLU
STEM = 32  # channels behind the stem
STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))  # channels and number of residual blocks
NUM_LEVELS = 3  # maps from which boxes are predicted

Activation = Callable[..., nn.Module]
LEAKY: Activation = partial(nn.LeakyReLU, SLOPE)


class FeatureLevel(NamedTuple):
    """One of the network's maps of predictions.

    Attributes:
        stride: pixels of a cell's side.
        anchors: width and height of each anchor in pixels.
        scale: stretches a centre's sigmoid about the middle of the cell (Darknet's ``scale_x_y``). If it is more than
            1, a centre can lie on the cell's border.
    """

    stride: int
    anchors: Sequence[tuple[int, int]]
    scale: float = 1.0


class ConvUnit(nn.Sequential):
    """A convolution, a batch norm and an activation, as one block without a split point inside.

    It is a class of its own, because split points are looked for inside a plain ``nn.Sequential``.
    """


def conv(inputs: int, outputs: int, size: int, stride: int = 1, activation: Activation = LEAKY) -> nn.Sequential:
    """Builds a convolution with batch norm and an activation.

    Args:
        inputs, outputs: the number of channels of the input and of the result.
        size: rows and columns of the kernel.
        stride: the convolution's stride.
        activation: makes the activation.
    """
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return ConvUnit(convolution, nn.BatchNorm2d(outputs), activation(inplace=True))


class DarknetResidual(nn.Module):
    """Adds to x the result of two convolutions of x.

    Args:
        channels: channels of x and of the result.
        hidden: channels between the two convolutions.
        activation: makes the activations.
    """

    def __init__(self, channels: int, hidden: int, activation: Activation = LEAKY) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv(channels, hidden, 1, activation=activation), conv(hidden, channels, 3, activation=activation)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the sum for ``x``, (N, channels, H, W), in the same shape."""
        return x + self.body(x)  # type: ignore[no-any-return]


class DarknetBackbone(nn.Module):
    """A Darknet-53 without its classifier, with ``STAGES`` behind the stem. Each stage halves rows and columns.

    Args:
        stem: builds the convolution of the stem, like ``conv``.
        stage: builds a stage. It takes the number of channels before the stage, the number behind it, and the number of
            residual blocks.
    """

    def __init__(self, stem: Activation, stage: Callable[[int, int, int], nn.Module]) -> None:
        super().__init__()
        self.stem = stem(3, STEM, 3)
        inputs = (STEM, *(channels for channels, _ in STAGES))
        self.stages = nn.ModuleList(stage(before, *behind) for before, behind in zip(inputs, STAGES, strict=False))

    def forward(self, images: Tensor) -> list[Tensor]:
        """Converts images (N, 3, H, W) to maps (N, C, h, w) at strides 8, 16 and 32, the finest first."""
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[-NUM_LEVELS:]


def neck(inputs: int, channels: int) -> nn.Sequential:
    """Builds five convolutions in a row, with kernels of side 1, 3, 1, 3 and 1.

    Args:
        inputs: channels of the input.
        channels: channels of the result.
    """
    wider = (layer for _ in range(2) for layer in (conv(channels, 2 * channels, 3), conv(2 * channels, channels, 1)))
    return nn.Sequential(conv(inputs, channels, 1), *wider)


def way_up(inputs: int) -> nn.Sequential:
    """Builds layers that halve the ``inputs`` channels of a map, and double its rows and columns."""
    return nn.Sequential(conv(inputs, inputs // 2, 1), nn.Upsample(scale_factor=2.0))


def head(inputs: int, level: FeatureLevel) -> nn.Sequential:
    """Builds the layers that predict ``NUMBERS`` numbers for each anchor of a level.

    Args:
        inputs: channels of the map from which the layers predict.
        level: the level, which has the anchors.
    """
    return nn.Sequential(conv(inputs, 2 * inputs, 3), nn.Conv2d(2 * inputs, len(level.anchors) * NUMBERS, 1))


def predictions(maps: Sequence[Tensor]) -> Tensor:
    """Joins the maps that the heads give into one tensor with a row for each anchor.

    Args:
        maps: for each level, (N, anchors of a cell * NUMBERS, h, w).

    Returns:
        (N, n, NUMBERS) for the n anchors of all maps. They are ordered by map, and then by row, column and place in the
        cell.
    """
    rows = [torch.unflatten(each.permute(0, 2, 3, 1).flatten(1), 1, (-1, NUMBERS)) for each in maps]
    return torch.cat(rows, 1)


class YoloBoxes:
    """Converts predictions (N, n, NUMBERS), of n anchors in each of N images, to candidates in pixels of the input.

    - The first two numbers give the centre of the box. Their sigmoid, stretched by the level's scale, is the centre's
      position in the cell.
    - The next two give the size of the box. Their exponential is multiplied by the anchor's width and height.
    - The fifth gives the objectness, and the others the probabilities of the classes. The score for a class is the
      product of both.

    Args:
        levels: the levels in the order of the predictions.
        size: pixels of the input's sides.
    """

    def __init__(self, levels: Sequence[FeatureLevel], size: int = SIZE) -> None:
        self._size = size
        cells, strides, anchors, scales = [], [], [], []
        for level in levels:
            positions = torch.arange(size // level.stride, dtype=torch.float32)
            rows, columns = torch.meshgrid(positions, positions, indexing="ij")
            corners = torch.stack((columns, rows), 2).flatten(0, 1)
            cells.append(corners.repeat_interleave(len(level.anchors), 0))
            anchors.append(torch.tensor(level.anchors, dtype=torch.float32).repeat(len(corners), 1))
            strides.append(torch.full((len(cells[-1]), 1), float(level.stride)))
            scales.append(torch.full((len(cells[-1]), 1), level.scale))
        self._strides, self._anchors, self._scales = (torch.cat(parts) for parts in (strides, anchors, scales))
        self._corners = torch.cat(cells) - (self._scales - 1) / 2  # where a stretched sigmoid of 0 lies

    def __call__(self, outputs: tuple[Tensor, ...]) -> Candidates:
        (raw,) = outputs
        centres = (raw[..., :2].sigmoid() * self._scales + self._corners) * self._strides
        halves = raw[..., 2:4].exp() * self._anchors / 2
        boxes = torch.cat((centres - halves, centres + halves), 2).clamp(0, self._size)
        scores = raw[..., 5:].sigmoid().mul_(raw[..., 4:5].sigmoid())  # in place, because an image has 850,000 of them
        return Candidates(boxes, scores)


def yolo_entry(name: str, title: str, *, build: Callable[[], nn.Module], levels: Sequence[FeatureLevel]) -> ModelEntry:
    """Returns the entry of one of Darknet's YOLOs. The user provides Darknet's file with the trained weights.

    Args:
        name: the name by which users choose the model. Darknet's file is called ``NAME.weights``.
        title: the model's name in its summary.
        build: as in ``ModelEntry``.
        levels: the levels in the order of the predictions.
    """
    return ModelEntry(
        name=name,
        summary=f"{title}, 80 classes of COCO; takes Darknet's {name}.weights",
        build=build,
        weights=Weights(darknet_file=f"{name}.weights"),
        preprocess=Preprocess(SIZE, SIZE, antialias=False, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
        labels=LABELS,
        default_split_point="output",
        decode=SuppressOverlaps(partial(YoloBoxes, levels)),
    )
