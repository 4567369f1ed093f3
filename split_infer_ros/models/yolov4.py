"""YOLOv4 (Bochkovskiy, Wang and Liao, 2020): CSPDarknet-53, a spatial pyramid, and paths up and down three strides.

This is the model of paper 002. Its convolutions run in the order of Darknet's file of weights.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from split_infer_ros.models import yolo

LEVELS = (
    yolo.FeatureLevel(8, ((12, 16), (19, 36), (40, 28)), 1.2),
    yolo.FeatureLevel(16, ((36, 75), (76, 55), (72, 146)), 1.1),
    yolo.FeatureLevel(32, ((142, 110), (192, 243), (459, 401)), 1.05),
)
POOLS = (13, 9, 5)  # sides of the spatial pyramid's windows
mish = partial(yolo.conv, activation=nn.Mish)


class CspStage(nn.Module):
    """A stage of CSPDarknet-53. It halves rows and columns, and its residual blocks see half of its channels.

    The first stage is an exception: its residual blocks see as many channels as it gives.

    Args:
        inputs: channels of the stage's input; ``STEM`` for the first stage.
        outputs: channels of its result.
        blocks: the number of residual blocks.
    """

    def __init__(self, inputs: int, outputs: int, blocks: int) -> None:
        super().__init__()
        is_first = inputs == yolo.STEM
        inner = outputs if is_first else outputs // 2
        hidden = inner // 2 if is_first else inner
        residuals = (yolo.DarknetResidual(inner, hidden, nn.Mish) for _ in range(blocks))
        self.down = mish(inputs, outputs, 3, 2)
        self.bypass = mish(outputs, inner, 1)
        self.blocks = nn.Sequential(mish(outputs, inner, 1), *residuals, mish(inner, inner, 1))
        self.join = mish(2 * inner, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Converts (N, inputs, H, W) to (N, outputs, H / 2, W / 2)."""
        x = self.down(x)
        bypass = self.bypass(x)
        joined: Tensor = self.join(torch.cat((self.blocks(x), bypass), 1))
        return joined


class SpatialPyramid(nn.Module):
    """Joins a map with copies of it in which each value is the largest one in a window around it.

    ``POOLS`` has the sides of the windows, one for each copy.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pools = nn.ModuleList(nn.MaxPool2d(size, stride=1, padding=size // 2) for size in POOLS)

    def forward(self, x: Tensor) -> Tensor:
        """Converts a map (N, C, h, w) to (N, 4 C, h, w): three copies and the map itself."""
        return torch.cat((*(pool(x) for pool in self.pools), x), 1)


class Yolov4(nn.Module):
    """The network of YOLOv4. It gives 85 numbers for each anchor: 4 of the box, the objectness, and 80 of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = yolo.DarknetBackbone(mish, CspStage)
        fine, middle, coarse = (channels // 2 for channels, _ in yolo.STAGES[-len(LEVELS) :])
        self.pyramid = nn.Sequential(
            yolo.conv(2 * coarse, coarse, 1),
            yolo.conv(coarse, 2 * coarse, 3),
            yolo.conv(2 * coarse, coarse, 1),
            SpatialPyramid(),
            yolo.conv((len(POOLS) + 1) * coarse, coarse, 1),
            yolo.conv(coarse, 2 * coarse, 3),
            yolo.conv(2 * coarse, coarse, 1),
        )
        self.ways_up = nn.ModuleList((yolo.way_up(coarse), yolo.way_up(middle)))
        self.laterals = nn.ModuleList((yolo.conv(2 * middle, middle, 1), yolo.conv(2 * fine, fine, 1)))
        self.necks_up = nn.ModuleList((yolo.neck(2 * middle, middle), yolo.neck(2 * fine, fine)))
        self.ways_down = nn.ModuleList((yolo.conv(fine, middle, 3, 2), yolo.conv(middle, coarse, 3, 2)))
        self.necks_down = nn.ModuleList((yolo.neck(2 * middle, middle), yolo.neck(2 * coarse, coarse)))
        inputs = (fine, middle, coarse)
        self.heads = nn.ModuleList(yolo.head(channels, level) for channels, level in zip(inputs, LEVELS, strict=True))

    def forward(self, images: Tensor) -> Tensor:
        """Converts images (N, 3, H, W) to predictions (N, anchors, 85).

        Predictions are ordered by stride, 8 first, then by row, column and anchor. H and W are multiples of 32. At
        416x416 there are 10,647 anchors.
        """
        fine, middle, coarse = self.backbone(images)
        x = self.pyramid(coarse)
        above = []
        for its_map, up, lateral, own_neck in zip(
            (middle, fine), self.ways_up, self.laterals, self.necks_up, strict=True
        ):
            above.append(x)
            upsampled = up(x)
            x = own_neck(torch.cat((lateral(its_map), upsampled), 1))
        outputs = [self.heads[0](x)]
        for before, down, own_neck, own_head in zip(
            reversed(above), self.ways_down, self.necks_down, self.heads[1:], strict=True
        ):
            x = own_neck(torch.cat((down(x), before), 1))
            outputs.append(own_head(x))
        return yolo.predictions(outputs)


ENTRIES = (yolo.yolo_entry("yolov4", "YOLOv4 with CSPDarknet-53", build=Yolov4, levels=LEVELS),)
