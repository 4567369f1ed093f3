"""SSD512 with ResNet-50 instead of VGG, made of torchvision's parts: the detector of paper 004's Tables 1 to 4."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.ops import Conv2dNormActivation

from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.ssd import SsdNet, ssd_decode
from split_infer_ros.models.torchvision_models import COCO_LABELS

SIZE = 512  # pixels of the input's sides (§4.2)
CLASSES = 91  # of COCO, with the background and gaps
EXTRA_CHANNELS = (512, 512, 256, 256)  # of the maps behind ResNet's; each has half the size of the map before it
# Sizes of the boxes of each map, as fractions of the image. The last one is the upper end of the last map.
SCALES = [0.1, 0.2, 0.37, 0.54, 0.71, 0.88, 0.96]
STEPS = [16, 32, 64, 128, 256, 512]  # pixels between the boxes of a map
RATIOS = [[2], [2, 3], [2, 3], [2, 3], [2], [2]]


class ResNetMaps(nn.Module):
    """Feature maps of six sizes, from 1/16 to 1/512 of the image's sides.

    Attributes:
        out_channels: the number of channels of each map, the largest map first.
    """

    out_channels = [1024, 2048, *EXTRA_CHANNELS]  # noqa: RUF012 - torchvision reads this attribute

    def __init__(self) -> None:
        super().__init__()
        self.body = IntermediateLayerGetter(resnet50(weights=None), {"layer3": "0", "layer4": "1"})
        inputs = self.out_channels[1:-1]
        self.extra = nn.ModuleList(
            nn.Sequential(
                Conv2dNormActivation(before, after // 2, 1), Conv2dNormActivation(after // 2, after, 3, stride=2)
            )
            for before, after in zip(inputs, EXTRA_CHANNELS, strict=True)
        )

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Converts images (N, 3, H, W) to six maps (N, C, h, w), named from ``0``, the largest one, to ``5``."""
        maps = list(self.body(images).values())
        for block in self.extra:
            maps.append(block(maps[-1]))
        return OrderedDict((str(level), feature_map) for level, feature_map in enumerate(maps))


def ssd_resnet50(size: int = SIZE) -> SSD:
    """Builds torchvision's SSD on ``ResNetMaps``, untrained, for images of ``size`` x ``size`` pixels."""
    return SSD(ResNetMaps(), DefaultBoxGenerator(RATIOS, scales=SCALES, steps=STEPS), (size, size), CLASSES)


ENTRIES = (
    ModelEntry(
        name="ssd_resnet50",
        summary="SSD512 with ResNet-50, 90 classes of COCO; no weights of this network are published",
        build=partial(SsdNet, ssd_resnet50),
        weights=Weights(),
        preprocess=Preprocess(SIZE, SIZE, antialias=False),
        labels=COCO_LABELS,
        default_split_point="output",
        decode=ssd_decode(ssd_resnet50),
    ),
)
