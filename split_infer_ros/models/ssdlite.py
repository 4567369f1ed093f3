"""SSDlite320 in a form that can be cut: raw head outputs from the network, boxes from decode."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD
from torchvision.ops import batched_nms, clip_boxes_to_image

from split_infer_ros.models.detections import Detections, Limits

SIZE = 320
CLASSES = 91
CANDIDATES = 300  # boxes a class that go on to suppression, as torchvision's SSDlite320


class SsdliteNet(nn.Module):
    """Backbone and head of torchvision's SSDlite320, without the parts that look at values.

    Its parameters have the names of torchvision's model, so that model's weights load as they are.
    """

    def __init__(self) -> None:
        super().__init__()
        whole = _torchvision_model()
        self.backbone = whole.backbone
        self.head = whole.head

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (N, 3, 320, 320) to class logits (N, 3234, 91) and box offsets (N, 3234, 4)."""
        outputs = self.head(list(self.backbone(images).values()))
        return outputs["cls_logits"], outputs["bbox_regression"]


def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    """Logits and offsets of a batch to detections in pixels of the 320x320 input, as torchvision does."""
    logits, offsets = outputs
    scores = logits.softmax(dim=-1)
    coder = _box_coder()
    return [_decode_one(coder, *image, limits) for image in zip(scores, offsets, strict=True)]


def _decode_one(coder: _Coder, scores: Tensor, offsets: Tensor, limits: Limits) -> Detections:
    boxes = clip_boxes_to_image(coder(offsets), (SIZE, SIZE))
    # best candidates of each class but the background; then those above the threshold, as one list
    best, anchors = scores[:, 1:].topk(min(CANDIDATES, len(scores)), dim=0)
    rank, label = torch.nonzero(best > limits.score_threshold, as_tuple=True)
    score, box = best[rank, label], boxes[anchors[rank, label]]
    kept = batched_nms(box, score, label, limits.nms_threshold)[: limits.max_detections]
    return Detections(box[kept], score[kept], label[kept] + 1)


class _Coder:
    """Offsets (anchors, 4) to boxes, against the anchors of a 320x320 input."""

    def __init__(self, whole: SSD) -> None:
        image = torch.zeros((1, 3, SIZE, SIZE))
        with torch.inference_mode():
            maps = list(whole.backbone(image).values())
        self._anchors = whole.anchor_generator(ImageList(image, [(SIZE, SIZE)]), maps)[0]
        self._decode = whole.box_coder.decode_single

    def __call__(self, offsets: Tensor) -> Tensor:
        boxes: Tensor = self._decode(offsets, self._anchors)
        return boxes


@cache
def _box_coder() -> _Coder:
    return _Coder(_torchvision_model().eval())


def _torchvision_model() -> SSD:
    return ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=CLASSES)
