"""YOLOv3 (Redmon and Farhadi, 2018): Darknet-53 with boxes at three strides."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from split_infer_ros.models import yolo

LEVELS = (
    yolo.FeatureLevel(32, ((116, 90), (156, 198), (373, 326))),
    yolo.FeatureLevel(16, ((30, 61), (62, 45), (59, 119))),
    yolo.FeatureLevel(8, ((10, 13), (16, 30), (33, 23))),
)


def _stage(inputs: int, channels: int, blocks: int) -> nn.Sequential:
    """Builds a stage of Darknet-53, which has residual blocks behind a convolution that halves rows and columns."""
    residuals = (yolo.DarknetResidual(channels, channels // 2) for _ in range(blocks))
    return nn.Sequential(yolo.conv(inputs, channels, 3, 2), *residuals)


class Yolov3(nn.Module):
    """The network of YOLOv3. It gives 85 numbers for each anchor: 4 of the box, the objectness, and 80 of classes."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = yolo.DarknetBackbone(yolo.conv, _stage)
        inputs = [channels for channels, _ in yolo.STAGES[: -len(LEVELS) - 1 : -1]]  # of the maps, the coarsest first
        halves = [channels // 2 for channels in inputs]
        from_above = [0, *(half // 2 for half in halves[:-1])]
        self.ways_up = nn.ModuleList(yolo.way_up(half) for half in halves[:-1])
        self.necks = nn.ModuleList(
            yolo.neck(channels + more, half) for channels, half, more in zip(inputs, halves, from_above, strict=True)
        )
        self.heads = nn.ModuleList(yolo.head(half, level) for half, level in zip(halves, LEVELS, strict=True))

    def forward(self, images: Tensor) -> Tensor:
        """Converts images (N, 3, H, W) to predictions (N, anchors, 85).

        Predictions are ordered by stride, 32 first, then by row, column and anchor. H and W are multiples of 32. At
        416x416 there are 10,647 anchors.
        """
        *finer, coarsest = self.backbone(images)
        x = self.necks[0](coarsest)
        outputs = [self.heads[0](x)]
        for fine, up, own_neck, own_head in zip(finer[::-1], self.ways_up, self.necks[1:], self.heads[1:], strict=True):
            x = own_neck(torch.cat((up(x), fine), 1))
            outputs.append(own_head(x))
        return yolo.predictions(outputs)


ENTRIES = (yolo.yolo_entry("yolov3", "YOLOv3 with Darknet-53", build=Yolov3, levels=LEVELS),)
