"""YOLOv3 (Redmon and Farhadi, 2018): Darknet-53 with boxes at three strides.

Each cell of a map has three anchors. Each anchor predicts a box, whether an object is there, and a score for each
class. Classes do not exclude each other.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torchvision.ops import Conv2dNormActivation, clip_boxes_to_image

from split_infer_ros.models.detections import Candidates, SuppressOverlaps

SIZE = 416  # pixels of the input's sides
CLASSES = 80
STRIDES = (32, 16, 8)
ANCHORS = (  # width and height in pixels, for each stride
    ((116, 90), (156, 198), (373, 326)),
    ((30, 61), (62, 45), (59, 119)),
    ((10, 13), (16, 30), (33, 23)),
)
STAGES = ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4))  # channels and number of residual blocks
SLOPE = 0.1  # of the leaky ReLU


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """Builds a convolution with batch norm and leaky ReLU."""
    layers: nn.Sequential = Conv2dNormActivation(
        inputs, outputs, kernel_size=size, stride=stride, activation_layer=partial(nn.LeakyReLU, SLOPE)
    )
    return layers


class DarknetResidual(nn.Module):
    """Computes x + the result of two convolutions of x."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(channels, channels // 2, 1), conv(channels // 2, channels, 3))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape of ``x``."""
        return x + self.body(x)  # type: ignore[no-any-return]


class Darknet53(nn.Module):
    """The backbone without its classifier, which makes maps at strides 32, 16 and 8."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 32, 3)
        stages, inputs = [], 32
        for channels, blocks in STAGES:
            stages.append(
                nn.Sequential(conv(inputs, channels, 3, 2), *(DarknetResidual(channels) for _ in range(blocks)))
            )
            inputs = channels
        self.stages = nn.ModuleList(stages)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Converts images (N, 3, H, W) to maps (N, C, h, w), the coarsest first."""
        x, maps = self.stem(images), []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        return maps[: -len(STRIDES) - 1 : -1]


class Yolov3(nn.Module):
    """The network. For each anchor it gives raw numbers: 4 of the box, the objectness and one for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Darknet53()
        inputs = [channels for channels, _ in STAGES[: -len(STRIDES) - 1 : -1]]  # of the maps, the coarsest first
        halves = [channels // 2 for channels in inputs]
        from_above = [0, *(half // 2 for half in halves[:-1])]
        self.ways_up = nn.ModuleList(
            nn.Sequential(conv(half, half // 2, 1), nn.Upsample(scale_factor=2.0)) for half in halves[:-1]
        )
        self.necks = nn.ModuleList(
            nn.Sequential(
                conv(channels + more, half, 1),
                *(layer for _ in range(2) for layer in (conv(half, channels, 3), conv(channels, half, 1))),
            )
            for channels, half, more in zip(inputs, halves, from_above, strict=True)
        )
        self.heads = nn.ModuleList(
            nn.Sequential(conv(half, 2 * half, 3), nn.Conv2d(2 * half, len(anchors) * (5 + CLASSES), 1))
            for half, anchors in zip(halves, ANCHORS, strict=True)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Converts images (N, 3, H, W) to predictions (N, anchors, 85).

        Predictions are ordered by stride, 32 first, then by row, column and anchor. H and W are multiples of 32. At
        416x416 there are 10,647 anchors.
        """
        coarsest, *finer = self.backbone(images)
        x = self.necks[0](coarsest)
        outputs = [self.heads[0](x)]
        for fine, way_up, neck, head in zip(finer, self.ways_up, self.necks[1:], self.heads[1:], strict=True):
            x = neck(torch.cat((way_up(x), fine), 1))
            outputs.append(head(x))
        rows = [output.permute(0, 2, 3, 1).flatten(1).unflatten(1, (-1, 5 + CLASSES)) for output in outputs]
        return torch.cat(rows, 1)


class YoloBoxes:
    """Converts predictions (N, anchors, 85) to candidates in pixels of the input.

    The first two numbers give the centre of the box: their sigmoid is its position in the cell. The next two give its
    size: their exponential is multiplied by the anchor's width and height. The score for a class is the objectness
    times the probability of the class.

    Args:
        size: pixels of the input's sides.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        cells, strides, anchors = [], [], []
        for stride, stride_anchors in zip(STRIDES, ANCHORS, strict=True):
            positions = torch.arange(size // stride, dtype=torch.float32)
            rows, columns = torch.meshgrid(positions, positions, indexing="ij")
            corners = torch.stack((columns, rows), 2).flatten(0, 1)
            cells.append(corners.repeat_interleave(len(stride_anchors), 0))
            anchors.append(torch.tensor(stride_anchors, dtype=torch.float32).repeat(len(corners), 1))
            strides.append(torch.full((len(cells[-1]), 1), float(stride)))
        self._cells, self._strides, self._anchors = (torch.cat(parts) for parts in (cells, strides, anchors))

    def __call__(self, outputs: tuple[Tensor, ...]) -> Candidates:
        (raw,) = outputs
        centres = (raw[..., :2].sigmoid() + self._cells) * self._strides
        halves = raw[..., 2:4].exp() * self._anchors / 2
        boxes = clip_boxes_to_image(torch.cat((centres - halves, centres + halves), 2), (self._size, self._size))
        scores = raw[..., 5:].sigmoid().mul_(raw[..., 4:5].sigmoid())  # in place, because an image has 850,000 of them
        return Candidates(boxes, scores)


decode = SuppressOverlaps(YoloBoxes)
