"""Decoding of image classifiers: each of the best classes becomes a detection that covers the model's input."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.models import ResNet18_Weights

from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode

IMAGENET_LABELS = tuple(ResNet18_Weights.IMAGENET1K_V1.meta["categories"])


def classify(height: int, width: int) -> Decode:
    """Makes the decode function of a classifier whose input is ``height`` x ``width`` pixels."""

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Converts logits (N, classes) to the classes whose softmax reaches the threshold, best first."""
        (logits,) = outputs
        scores, labels = logits.softmax(dim=1).topk(min(limits.max_detections, logits.shape[1]), dim=1)
        whole = torch.tensor([0.0, 0.0, width, height])
        detections = []
        for image_scores, image_labels in zip(scores, labels, strict=True):
            kept = image_scores >= limits.score_threshold
            boxes = whole.expand(int(kept.sum()), 4)
            detections.append(Detections(boxes, image_scores[kept], image_labels[kept]))
        return detections

    return decode
