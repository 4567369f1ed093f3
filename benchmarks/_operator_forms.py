"""Vision-specific operators at one size: ours, the library's own and the naive form, on the same values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from _detector_latency import class_by_class
from torch import Tensor
from torch.nn import functional
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image
from torchvision.ops import roi_align as torchvisions_roi_align

from split_infer_ros.models.detections import Candidates, Detections, Limits
from split_infer_ros.vision_ops.box_nms import box_nms
from split_infer_ros.vision_ops.multibox_decode import WEIGHTS, multibox_decode
from split_infer_ros.vision_ops.prefix_sum import prefix_sum
from split_infer_ros.vision_ops.roi_align import roi_align
from split_infer_ros.vision_ops.segmented_argsort import segmented_argsort

OURS, LIBRARY, NAIVE = "ours", "library", "naive"
FORMS = (OURS, LIBRARY, NAIVE)
HEAD, HEAVY = "box_nms of a head", "box_nms of a head, heavy"
LABELLED, ARGSORT, SUM, ALIGN, DECODE = "box_nms", "segmented_argsort", "prefix_sum", "roi_align", "multibox_decode"
OPERATORS = (LABELLED, ARGSORT, SUM, ALIGN, DECODE)
HEADS_BOXES, HEADS_CLASSES = 3234, 91  # SSDlite320's
SIDE, CLASSES, IOU, MOST = 320, 20, 0.5, 100

Forms = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One operator at one size.

    Attributes:
        operator: which.
        images: that are given at once.
        size: boxes, regions or values an image.
        forms: the rivals.
    """

    operator: str
    images: int
    size: int
    forms: Forms

    @property
    def values(self) -> int:
        """Boxes, regions or values in all images."""
        return self.images * self.size


def boxes_of(random: torch.Generator, images: int, size: int, heavy: bool = False) -> Tensor:
    """Boxes (images, size, 4) in pixels: spread over the picture, or nearly all of them on top of each other."""
    first = torch.rand((images, size, 2), generator=random) * (20 if heavy else 300)
    sides = torch.rand((images, size, 2), generator=random) * 60 + (200 if heavy else 10)
    return torch.cat([first, first + sides], dim=2)


def head(device: torch.device, random: torch.Generator, images: int, heavy: bool) -> Case:
    """What SSDlite320 has in the end, at torchvision's own limits: scores of all classes."""
    boxes = boxes_of(random, images, HEADS_BOXES, heavy).to(device)
    shape = (images, HEADS_BOXES, HEADS_CLASSES)
    scores = (torch.randn(shape, generator=random) * 3).softmax(2).to(device)
    least, iou, most = 0.001, 0.55, 300

    def ours() -> Tensor:
        limits = {"iou_threshold": iou, "max_detections": most, "most_of_a_class": most}
        return box_nms(boxes, scores[..., 1:], score_threshold=least, **limits)

    def library() -> list[Detections]:
        return class_by_class(Candidates(boxes, scores[..., 1:], None, most), Limits(least, iou, most))

    return Case(HEAVY if heavy else HEAD, images, HEADS_BOXES, {OURS: ours, LIBRARY: library})


def labelled(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Boxes with a score and a label each, a sixth of them above the threshold."""
    boxes = boxes_of(random, images, size).to(device)
    scores = torch.rand((images, size), generator=random).pow(4).to(device)
    labels = torch.randint(0, CLASSES, (images, size), generator=random).to(device)

    def ours() -> Tensor:
        return box_nms(boxes, scores, labels, score_threshold=0.5, iou_threshold=IOU, max_detections=MOST)

    def each(suppress: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        found = []
        for its, score, label in zip(boxes, scores, labels, strict=True):
            chosen = (score > 0.5).nonzero().flatten()
            found.append(chosen[suppress(its[chosen], score[chosen], label[chosen])[:MOST]])
        return found

    def naive(its: Tensor, score: Tensor, label: Tensor) -> Tensor:
        rest, kept = score.argsort(descending=True), []
        while len(rest):
            kept.append(rest[0])
            overlap = box_iou(its[rest[:1]], its[rest])[0]
            rest = rest[((overlap <= IOU) | (label[rest] != label[rest[0]])) & (rest != rest[0])]
        return torch.stack(kept) if kept else rest

    forms = {OURS: ours, LIBRARY: lambda: each(lambda *its: batched_nms(*its, IOU)), NAIVE: lambda: each(naive)}
    return Case(LABELLED, images, size, forms)


def argsort(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Scores of each image in descending order. All images have as many, or the library could not do it in one go."""
    values = torch.rand(images * size, generator=random).to(device)
    offsets = torch.arange(0, images * size + 1, size, device=device)
    rows = values.view(images, size)
    forms = {
        OURS: lambda: segmented_argsort(values, offsets, descending=True),
        LIBRARY: lambda: rows.argsort(dim=1, descending=True, stable=True),
        NAIVE: lambda: [row.argsort(descending=True, stable=True) for row in rows],
    }
    return Case(ARGSORT, images, size, forms)


def sums(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Of each image; the naive form adds one by one."""
    values = torch.rand((images, size), generator=random).to(device)
    forms = {
        OURS: lambda: prefix_sum(values),
        LIBRARY: lambda: values.cumsum(-1),
        NAIVE: lambda: [list(itertools.accumulate(row)) for row in values.tolist()],
    }
    return Case(SUM, images, size, forms)


def decode(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Offsets to boxes in the picture; the naive form takes one box at a time."""
    offsets = torch.randn((images, size, 4), generator=random).to(device)
    (anchors,) = boxes_of(random, 1, size).to(device)
    coder = BoxCoder(WEIGHTS)

    def each(offsets: Tensor, anchors: Tensor) -> Tensor:
        return clip_boxes_to_image(coder.decode_single(offsets, anchors), (SIDE, SIDE))

    forms = {
        OURS: lambda: multibox_decode(offsets, anchors, size=(SIDE, SIDE)),
        LIBRARY: lambda: torch.stack([each(image, anchors) for image in offsets]),
        NAIVE: lambda: [
            [each(one[None], anchor[None]) for one, anchor in zip(image, anchors, strict=True)] for image in offsets
        ],
    }
    return Case(DECODE, images, size, forms)


def align(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Regions of one map; the naive form split points each out and resizes it."""
    features = torch.rand((images, 64, 40, 40), generator=random).to(device)
    regions = boxes_of(random, 1, size)[0].to(device)
    where = torch.randint(0, images, (size,), generator=random).to(device)
    scale = 40 / SIDE

    def cut_out() -> list[Tensor]:
        found = []
        for image, region in zip(where.tolist(), (regions * scale).tolist(), strict=True):
            left, top, right, bottom = (int(edge) for edge in region)
            piece = features[image : image + 1, :, min(top, 39) : bottom + 1, min(left, 39) : right + 1]
            found.append(functional.interpolate(piece, size=(7, 7), mode="bilinear"))
        return found

    def library() -> Tensor:
        return torchvisions_roi_align(features, torch.cat([where[:, None], regions], dim=1), (7, 7), scale)

    def ours() -> Tensor:
        return roi_align(features, regions, where, (7, 7), spatial_scale=scale)

    return Case(ALIGN, images, size, {OURS: ours, LIBRARY: library, NAIVE: cut_out})
