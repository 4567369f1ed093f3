"""RetinaNet and FCOS as networks that can be split.

Each cell of every level of the feature pyramid gives scores for all classes: 73 MB per image for RetinaNet. The network
therefore selects the best scores and decodes their boxes itself, so that its output is small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import (
    FCOS_ResNet50_FPN_Weights,
    RetinaNet_ResNet50_FPN_Weights,
    fcos_resnet50_fpn,
    retinanet_resnet50_fpn,
)
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.image_list import ImageList
from torchvision.ops import clip_boxes_to_image

from split_infer_ros.models.letterbox import Letterbox
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.models.torchvision_models import detector_entry

LETTERBOX = 800, 1333  # rows and columns into which torchvision fits a landscape image
HEIGHT, WIDTH = 800, 1344  # LETTERBOX, rounded up to multiples of 32
STRIDES = (8, 16, 32, 64, 128)  # of the levels of the pyramid
MAX_CANDIDATES = 1000  # of each level, before suppression


class DenseDetector(nn.Module):
    """The backbone and head of a torchvision detector, as a network that selects its best boxes itself.

    Subclasses say how the head's outputs become scores and boxes. Parameters have the names of torchvision's model, so
    weights of that model load unchanged.

    Args:
        whole: torchvision's model, which gives the backbone and the head.
        height, width: the size of the input in pixels, multiples of 32.
    """

    anchors: Tensor

    def __init__(self, whole: Any, height: int, width: int) -> None:
        super().__init__()
        self.backbone = whole.backbone
        self.head = whole.head
        self._size = height, width
        self._classes: int = whole.head.classification_head.num_classes
        anchors, self._counts = anchors_of(whole.anchor_generator, self._size, STRIDES)
        self.register_buffer("anchors", anchors, persistent=False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns the best candidates of each image, before suppression.

        Args:
            images: (N, 3, height, width).

        Returns:
            Scores (N, M), boxes (N, M, 4) in pixels of the input, and labels int64 (N, M). M is the number of
            candidates of an image: up to ``MAX_CANDIDATES`` for each level of the pyramid.
        """
        outputs = self.head(list(self.backbone(images).values()))
        ranks, offsets = self.ranks(outputs), outputs["bbox_regression"]
        best, start = [], 0
        for count in self._counts:
            level = slice(start, start + count)
            best.append(self._best(ranks[:, level], offsets[:, level], self.anchors[level], count))
            start += count
        scores, boxes, labels = (torch.cat(parts, 1) for parts in zip(*best, strict=True))
        return scores, boxes, labels

    def ranks(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """Returns a number for each anchor and class, (N, anchors, classes).

        The numbers have the same order as the scores, and are cheaper to compute.

        Args:
            outputs: the outputs of the head, by torchvision's names.
        """
        raise NotImplementedError

    def scores(self, ranks: Tensor) -> Tensor:
        """Converts ranks to scores 0..1 of the same shape."""
        raise NotImplementedError

    def boxes(self, offsets: Tensor, anchors: Tensor) -> Tensor:
        """Converts the head's offsets (n, 4) from n anchors (n, 4) to boxes (n, 4).

        Anchors and boxes are left, top, right, bottom in pixels of the input.
        """
        raise NotImplementedError

    def _best(self, ranks: Tensor, offsets: Tensor, anchors: Tensor, num_anchors: int) -> tuple[Tensor, Tensor, Tensor]:
        """Returns scores, boxes and labels of the best candidates of one level."""
        count = min(MAX_CANDIDATES, num_anchors * self._classes)
        top = ranks.flatten(1).topk(count, dim=1)
        anchor = top.indices // self._classes
        best_offsets = offsets.gather(1, anchor.unsqueeze(2).expand(-1, -1, 4)).float()
        boxes = self.boxes(best_offsets.flatten(0, 1), anchors[anchor].float().flatten(0, 1))
        boxes = clip_boxes_to_image(boxes, self._size).unflatten(0, (-1, count))
        return self.scores(top.values.float()), boxes, top.indices % self._classes


class RetinaNet(DenseDetector):
    """torchvision's RetinaNet with ResNet-50, untrained.

    Args:
        height, width: the size of the input in pixels, multiples of 32.
    """

    def __init__(self, height: int = HEIGHT, width: int = WIDTH) -> None:
        whole = retinanet_resnet50_fpn(weights=None, weights_backbone=None)
        for module in whole.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = torch.finfo(torch.float32).tiny  # the published weights need 0, which could divide by 0
        super().__init__(whole, height, width)
        self._coder = whole.box_coder

    def ranks(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs["cls_logits"]

    def scores(self, ranks: Tensor) -> Tensor:
        return ranks.sigmoid()

    def boxes(self, offsets: Tensor, anchors: Tensor) -> Tensor:
        return self._coder.decode_single(offsets, anchors)  # type: ignore[no-any-return]


class Fcos(DenseDetector):
    """torchvision's FCOS with ResNet-50, untrained.

    Args:
        height, width: the size of the input in pixels, multiples of 32.
    """

    def __init__(self, height: int = HEIGHT, width: int = WIDTH) -> None:
        whole = fcos_resnet50_fpn(weights=None, weights_backbone=None)
        super().__init__(whole, height, width)
        self._coder = whole.box_coder

    def ranks(self, outputs: Mapping[str, Tensor]) -> Tensor:
        return outputs["cls_logits"].sigmoid() * outputs["bbox_ctrness"].sigmoid()

    def scores(self, ranks: Tensor) -> Tensor:
        return ranks.sqrt()

    def boxes(self, offsets: Tensor, anchors: Tensor) -> Tensor:
        return self._coder.decode(offsets, anchors)  # type: ignore[no-any-return]


def anchors_of(generator: AnchorGenerator, size: tuple[int, int], strides: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Returns the anchors of all levels of a feature pyramid, one level after the other.

    Args:
        generator: torchvision's generator of the detector's anchors.
        size: height and width of the input in pixels.
        strides: pixels of the input for each cell of each level's map.

    Returns:
        The n anchors, float32 (n, 4): left, top, right, bottom in pixels of the input. Also the number of anchors of
        each level.
    """
    grids = [(math.ceil(size[0] / stride), math.ceil(size[1] / stride)) for stride in strides]
    counts = [generator.num_anchors_per_location()[0] * rows * columns for rows, columns in grids]
    image = ImageList(torch.empty((1, 1, *size)), [size])
    anchors: Tensor = generator(image, [torch.empty((1, 1, *grid)) for grid in grids])[0]
    return anchors, counts


_PREPROCESS = Preprocess(HEIGHT, WIDTH, antialias=False, letterbox=Letterbox(*LETTERBOX))

ENTRIES = (
    detector_entry(
        "retinanet",
        title="RetinaNet with ResNet-50",
        build=RetinaNet,
        published=RetinaNet_ResNet50_FPN_Weights.COCO_V1,
        preprocess=_PREPROCESS,
    ),
    detector_entry(
        "fcos",
        title="FCOS with ResNet-50",
        build=Fcos,
        published=FCOS_ResNet50_FPN_Weights.COCO_V1,
        preprocess=_PREPROCESS,
    ),
)
