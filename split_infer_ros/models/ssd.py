"""SSD300 and SSDlite320 in a form that can be cut: raw head outputs from the network, boxes from decode."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torchvision.models.detection import ssd300_vgg16, ssdlite320_mobilenet_v3_large
from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD
from torchvision.ops import clip_boxes_to_image

from split_infer_ros.models.detections import Detections, Limits, suppress
from split_infer_ros.models.entry import Decode

Build = Callable[[], SSD]


def ssd300() -> SSD:
    """torchvision's SSD300 with VGG-16, untrained."""
    return ssd300_vgg16(weights=None, weights_backbone=None)


def ssdlite320() -> SSD:
    """torchvision's SSDlite320 with MobileNetV3-Large, untrained."""
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)


class SsdNet(nn.Module):
    """Backbone and head of torchvision's SSD, without the parts that look at values.

    Its parameters have the names of torchvision's model, so that model's weights load as they are.
    """

    def __init__(self, build: Build) -> None:
        super().__init__()
        whole = build()
        self.backbone = whole.backbone
        self.head = whole.head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (N, 3, size, size) to class logits (N, anchors, classes) and box offsets (N, anchors, 4)."""
        outputs = self.head(list(self.backbone(images).values()))
        return outputs["cls_logits"], outputs["bbox_regression"]


def ssd_decode(build: Build) -> Decode:
    """The decode of the SSD that ``build`` makes."""

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Logits and offsets of a batch to detections in pixels of the input, as torchvision does."""
        coder = _box_coder(build)
        logits, offsets = outputs
        scores = logits.softmax(dim=-1)
        return [_decode_one(coder, *image, limits) for image in zip(scores, offsets, strict=True)]

    return decode


def _decode_one(coder: _Coder, scores: Tensor, offsets: Tensor, limits: Limits) -> Detections:
    boxes = coder(offsets)
    # best candidates of each class but the background, as one list
    best, anchors = scores[:, 1:].topk(min(coder.candidates, len(scores)), dim=0)
    labels = torch.arange(1, scores.shape[1]).expand_as(best)
    return suppress(best.flatten(), boxes[anchors.flatten()], labels.flatten(), limits)


class _Coder:
    """Offsets (anchors, 4) to boxes within the input, against the anchors of that input.

    Attributes:
        candidates: boxes a class that go on to suppression.
    """

    def __init__(self, build: Build) -> None:
        with torch.device("meta"):  # sizes alone count, so nothing is computed
            whole = build().eval()
            self._size: tuple[int, int] = tuple(whole.transform.fixed_size)
            maps = whole.backbone(torch.empty((1, 3, *self._size))).values()
        likeness = whole.anchor_generator
        generator = DefaultBoxGenerator(
            likeness.aspect_ratios, scales=likeness.scales, steps=likeness.steps, clip=likeness.clip
        )
        image = ImageList(torch.empty((1, 3, *self._size)), [self._size])
        self.candidates: int = whole.topk_candidates
        self._anchors = generator(image, [torch.empty(one.shape) for one in maps])[0]
        self._decode = whole.box_coder.decode_single

    def __call__(self, offsets: Tensor) -> Tensor:
        boxes: Tensor = clip_boxes_to_image(self._decode(offsets, self._anchors), self._size)
        return boxes


@cache
def _box_coder(build: Build) -> _Coder:
    return _Coder(build)
