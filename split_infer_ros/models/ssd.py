"""SSDs as networks that can be split: the network gives raw outputs, and ``decode`` makes boxes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, fx, nn
from torchvision.models.detection import (
    SSD300_VGG16_Weights,
    SSDLite320_MobileNet_V3_Large_Weights,
    ssd300_vgg16,
    ssdlite320_mobilenet_v3_large,
)
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD

from split_infer_ros.models.candidates import Candidates, SuppressOverlaps
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.torchvision_models import detector_entry
from split_infer_ros.vision_ops.multibox_decode import multibox_decode

fx.wrap("multibox_decode")  # one operator of the graph

Build = Callable[[], SSD]


def ssd300() -> SSD:
    """Builds torchvision's SSD300 with VGG-16, untrained."""
    return ssd300_vgg16(weights=None, weights_backbone=None)


def ssdlite320() -> SSD:
    """Builds torchvision's SSDlite320 with MobileNetV3-Large, untrained."""
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)


class SsdNet(nn.Module):
    """Backbone and head of torchvision's SSD, without the parts that depend on values of tensors.

    Parameters have the names of torchvision's model, so weights of that model load unchanged.

    Args:
        build: makes torchvision's model.
    """

    def __init__(self, build: Build) -> None:
        super().__init__()
        whole = build()
        self.backbone = whole.backbone
        self.head = whole.head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Converts images (N, 3, size, size) to class logits (N, anchors, classes) and box offsets (N, anchors, 4)."""
        outputs = self.head(list(self.backbone(images).values()))
        return outputs["cls_logits"], outputs["bbox_regression"]


def ssd_decode(build: Build) -> SuppressOverlaps:
    """Makes the decode function of the SSD that ``build`` makes. It selects boxes by torchvision's rules."""
    return SuppressOverlaps(partial(MultiboxDecoder, build))


class MultiboxDecoder:
    """Converts class logits (N, anchors, classes) and box offsets (N, anchors, 4) to candidates in pixels of the input.

    Each box has a score for each class. The score of the background, class 0, is zero.

    Args:
        build: makes the SSD that provides the anchors.
    """

    def __init__(self, build: Build) -> None:
        with torch.device("meta"):  # only shapes matter, so nothing is computed
            whole = build().eval()
            self._size: tuple[int, int] = tuple(whole.transform.fixed_size)
            maps = whole.backbone(torch.empty((1, 3, *self._size))).values()
        settings = whole.anchor_generator
        generator = DefaultBoxGenerator(
            settings.aspect_ratios, scales=settings.scales, steps=settings.steps, clip=settings.clip
        )
        image = ImageList(torch.empty((1, 3, *self._size)), [self._size])
        self._max_per_class: int = whole.topk_candidates
        self._anchors = generator(image, [torch.empty(feature_map.shape) for feature_map in maps])[0]
        self._weights: tuple[float, float, float, float] = whole.box_coder.weights
        self._background = torch.tensor([0])

    def __call__(self, outputs: tuple[Tensor, ...]) -> Candidates:
        logits, offsets = outputs
        scores = logits.softmax(dim=-1).index_fill_(2, self._background, 0.0)  # cheaper than copying all other classes
        boxes = multibox_decode(offsets, self._anchors, weights=self._weights, size=self._size)
        return Candidates(boxes, scores, max_per_class=self._max_per_class)


ENTRIES = (
    detector_entry(
        "ssdlite320",
        title="SSDlite320 with MobileNetV3-Large",
        build=partial(SsdNet, ssdlite320),
        published=SSDLite320_MobileNet_V3_Large_Weights.COCO_V1,
        preprocess=Preprocess(320, 320, antialias=False, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
        decode=ssd_decode(ssdlite320),
    ),
    detector_entry(
        "ssd300",
        title="SSD300 with VGG-16",
        build=partial(SsdNet, ssd300),
        published=SSD300_VGG16_Weights.COCO_V1,
        preprocess=Preprocess(
            300, 300, antialias=False, mean=(0.48235, 0.45882, 0.40784), std=(1 / 255, 1 / 255, 1 / 255)
        ),
        decode=ssd_decode(ssd300),
    ),
)
