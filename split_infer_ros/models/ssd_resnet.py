"""SSD512 with ResNet-50 in VGG's place: the detector of the paper's Tables 1 to 4, from torchvision's parts."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from torchvision.models import resnet50
from torchvision.models._utils import IntermediateLayerGetter
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.ssd import SSD
from torchvision.ops import Conv2dNormActivation

SIZE = 512  # pixels a side (§4.2)
CLASSES = 91  # of COCO, with the background and gaps
EXTRAS = (512, 512, 256, 256)  # channels of the maps behind ResNet's own, each of half the size
SCALES = [0.1, 0.2, 0.37, 0.54, 0.71, 0.88, 0.96]  # of the boxes of a map and the next one, as parts of the image
STEPS = [16, 32, 64, 128, 256, 512]  # pixels between the boxes of a map
RATIOS = [[2], [2, 3], [2, 3], [2, 3], [2], [2]]


class ResNetMaps(nn.Module):
    """Feature maps of six sizes, from 1/16 to 1/512 of the image's sides.

    Attributes:
        out_channels: of each map.
    """

    out_channels = [1024, 2048, *EXTRAS]  # noqa: RUF012 - where torchvision looks for it

    def __init__(self) -> None:
        super().__init__()
        self.body = IntermediateLayerGetter(resnet50(weights=None), {"layer3": "0", "layer4": "1"})
        inputs = self.out_channels[1:-1]
        self.extra = nn.ModuleList(
            nn.Sequential(
                Conv2dNormActivation(before, after // 2, 1), Conv2dNormActivation(after // 2, after, 3, stride=2)
            )
            for before, after in zip(inputs, EXTRAS, strict=True)
        )

    def forward(self, images: Tensor) -> OrderedDict[str, Tensor]:
        """Images (N, 3, H, W) to maps (N, C, h, w), the largest first."""
        maps = list(self.body(images).values())
        for block in self.extra:
            maps.append(block(maps[-1]))
        return OrderedDict((str(level), one) for level, one in enumerate(maps))


def ssd_resnet50(size: int = SIZE) -> SSD:
    """torchvision's SSD around these maps, untrained, for images of ``size`` x ``size`` pixels."""
    return SSD(ResNetMaps(), DefaultBoxGenerator(RATIOS, scales=SCALES, steps=STEPS), (size, size), CLASSES)
