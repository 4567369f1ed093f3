"""Decoding of detectors that suppress nothing: the DETR family's queries, and outputs that were selected already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from split_infer_ros.models.box_decoders import best_of, best_of_each, corners
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode


def detr(height: int, width: int, order: Sequence[int]) -> Decode:
    """Makes the decode of logits (N, n, classes) and boxes (N, n, 4), centre and size in 0..1.

    Scores are the sigmoid of the logits. The best of all queries and classes are kept, at most one for each query on
    average, as RT-DETR and RF-DETR do.

    Args:
        height, width: the size of the input in pixels.
        order: the places of logits and boxes among the outputs.
    """
    size = torch.tensor([width, height, width, height])

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        logits, boxes = (outputs[place] for place in order)
        queries, classes = logits.shape[1:]
        top, places = logits.flatten(1).topk(min(limits.max_detections, queries), dim=1)
        scale = size.to(boxes.device)
        detections = []
        for image_boxes, image_top, image_places in zip(boxes, top, places, strict=True):
            chosen = corners(image_boxes[image_places // classes]) * scale
            detections.append(best_of(chosen, image_top.sigmoid(), image_places % classes, limits))
        return detections

    return decode


def detr_softmax(height: int, width: int, order: Sequence[int]) -> Decode:
    """Makes the decode of the first DETR's outputs: as ``detr``, but the last class means that there is no object.

    Scores are the softmax of the logits. Each query has its best class.
    """
    size = torch.tensor([width, height, width, height])

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        logits, boxes = (outputs[place] for place in order)
        scores, labels = logits.softmax(2)[..., :-1].max(2)
        return best_of_each(corners(boxes) * size.to(boxes.device), scores, labels, limits)

    return decode


def rtdetr(height: int, width: int) -> Decode:
    """Makes the decode of (N, n, 4 + classes): centre and size in 0..1, then scores 0..1 of all classes."""
    size = torch.tensor([width, height, width, height])

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        (raw,) = outputs
        scores, labels = raw[..., 4:].max(2)
        return best_of_each(corners(raw[..., :4]) * size.to(raw.device), scores, labels, limits)

    return decode


def rtdetr_end_to_end(height: int, width: int) -> Decode:
    """Makes the decode of (N, n, 6): centre and size in 0..1, score, class."""
    size = torch.tensor([width, height, width, height])

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        (raw,) = outputs
        return best_of_each(corners(raw[..., :4]) * size.to(raw.device), raw[..., 4], raw[..., 5].long(), limits)

    return decode


def torchvision(order: Sequence[int]) -> Decode:
    """Makes the decode of boxes (N, n, 4) as corners in pixels of the input, labels (N, n) and scores (N, n).

    The network suppressed its boxes itself. Outputs without the batch, (n, 4), (n,) and (n,), are those of one image.

    Args:
        order: the places of boxes, labels and scores among the outputs.
    """

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        boxes, labels, scores = (outputs[place] for place in order)
        if boxes.ndim == 2:
            boxes, labels, scores = boxes[None], labels[None], scores[None]
        return best_of_each(boxes, scores, labels.long(), limits)

    return decode
