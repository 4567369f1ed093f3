"""Makes cases: a vision-specific operator or kernel at one size, with its rivals, which get equal values.

The rivals are this package's operator, the one of the library (torchvision or torch), and a naive one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image
from torchvision.ops import roi_align as torchvision_roi_align

from benchmarks.vision_ops.detector_latency import Found, class_by_class
from split_infer_ros.models.candidates import Candidates
from split_infer_ros.models.detections import Limits
from split_infer_ros.vision_ops.box_nms import box_nms
from split_infer_ros.vision_ops.multibox_decode import WEIGHTS, multibox_decode
from split_infer_ros.vision_ops.roi_align import roi_align

OURS, LIBRARY, NAIVE = "ours", "library", "naive"
RIVALS = (OURS, LIBRARY, NAIVE)
HEAD, HEAVY = "box_nms of a head", "box_nms of a head, heavy"
LABELLED, ALIGN, DECODE = "box_nms", "roi_align", "multibox_decode"
OPERATORS = (LABELLED, ALIGN, DECODE)
ARGSORT, SUM = "segmented argsort's kernels", "prefix sum's kernels"  # which box_nms launches on a GPU
KERNELS = (ARGSORT, SUM)
HEAD_BOXES, HEAD_CLASSES = 3234, 91  # of SSDlite320
SIDE, CLASSES, SCORE, IOU, MAX_DETECTIONS = 320, 20, 0.5, 0.5, 100

Rivals = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One operator at one size.

    Attributes:
        operator: the operator's name.
        images: the number of images in a batch.
        size: the number of boxes, regions or values in an image.
        rivals: functions that run the operator, by name.
    """

    operator: str
    images: int
    size: int
    rivals: Rivals

    @property
    def values(self) -> int:
        """The number of boxes, regions or values in all images."""
        return self.images * self.size


def boxes_of(random: torch.Generator, images: int, size: int, heavy: bool = False) -> Tensor:
    """Returns boxes, float32 (images, size, 4): left, top, right and bottom in pixels.

    They are spread over the picture. If ``heavy``, nearly all of them lie on top of each other.
    """
    corners = torch.rand((images, size, 2), generator=random) * (20 if heavy else 300)
    sides = torch.rand((images, size, 2), generator=random) * 60 + (200 if heavy else 10)
    return torch.cat([corners, corners + sides], dim=2)


def head(device: torch.device, random: torch.Generator, images: int, heavy: bool) -> Case:
    """Makes the case of suppression behind SSDlite320's head: all classes at once, with torchvision's own limits."""
    boxes = boxes_of(random, images, HEAD_BOXES, heavy).to(device)
    shape = (images, HEAD_BOXES, HEAD_CLASSES)
    scores = (torch.randn(shape, generator=random) * 3).softmax(2).to(device)
    limits = Limits(score_threshold=0.001, nms_threshold=0.55, max_detections=300)
    candidates = Candidates(boxes, scores[..., 1:], max_per_class=limits.max_detections)

    def ours() -> Tensor:
        return box_nms(
            candidates.boxes,
            candidates.scores,
            score_threshold=limits.score_threshold,
            iou_threshold=limits.nms_threshold,
            max_detections=limits.max_detections,
            max_per_class=candidates.max_per_class,
        )

    def library() -> list[Found]:
        return class_by_class(candidates, limits)

    rivals = {OURS: ours, LIBRARY: library}
    return Case(HEAVY if heavy else HEAD, images=images, size=HEAD_BOXES, rivals=rivals)


def labelled(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Makes boxes with a score and a label each. A sixth of the scores lie above the threshold."""
    boxes = boxes_of(random, images, size).to(device)
    scores = torch.rand((images, size), generator=random).pow(4).to(device)
    labels = torch.randint(0, CLASSES, (images, size), generator=random).to(device)

    def ours() -> Tensor:
        return box_nms(boxes, scores, labels, score_threshold=SCORE, iou_threshold=IOU, max_detections=MAX_DETECTIONS)

    def image_by_image(suppress: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        kept = []
        for image_boxes, image_scores, image_labels in zip(boxes, scores, labels, strict=True):
            candidates = (image_scores > SCORE).nonzero().flatten()
            order = suppress(image_boxes[candidates], image_scores[candidates], image_labels[candidates])
            kept.append(candidates[order[:MAX_DETECTIONS]])
        return kept

    def by_torchvision(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        return batched_nms(boxes, scores, labels, IOU)

    def naively(boxes: Tensor, scores: Tensor, labels: Tensor) -> Tensor:
        rest, kept = scores.argsort(descending=True), []
        while len(rest):
            kept.append(rest[0])
            overlap = box_iou(boxes[rest[:1]], boxes[rest])[0]
            rest = rest[((overlap <= IOU) | (labels[rest] != labels[rest[0]])) & (rest != rest[0])]
        return torch.stack(kept) if kept else rest

    rivals = {OURS: ours, LIBRARY: lambda: image_by_image(by_torchvision), NAIVE: lambda: image_by_image(naively)}
    return Case(LABELLED, images=images, size=size, rivals=rivals)


def argsort(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Makes the case of sorting keys within each image. All images have equally many keys.

    So the library can sort all images in one call. The rivals of the kernels sort only the part of the keys that
    differs within an image. The kernels overwrite their keys, so they get a copy. The time of copying is measured too.
    """
    from split_infer_ros.vision_ops.kernels.segmented_argsort import argsort_by_merging  # Triton is optional

    rows = torch.randint(-(2**31), 2**31, (images, size), generator=random).to(device, torch.int32)
    keys = ((torch.arange(images, device=device) << 32)[:, None] + rows).flatten()
    offsets = torch.arange(0, images * size + 1, size, device=device)
    rivals = {
        OURS: lambda: argsort_by_merging(keys.clone(), offsets),
        LIBRARY: lambda: rows.argsort(dim=1, stable=True),
        NAIVE: lambda: [row.argsort(stable=True) for row in rows],
    }
    return Case(ARGSORT, images=images, size=size, rivals=rivals)


def sums(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Makes the case of prefix sums of rows of counts. The naive rival adds one count after another."""
    from split_infer_ros.vision_ops.kernels.prefix_sum import sum_in_stages  # Triton is optional

    values = torch.randint(0, 1000, (images, size), generator=random).to(device)
    rivals = {
        OURS: lambda: sum_in_stages(values),
        LIBRARY: lambda: values.cumsum(-1),
        NAIVE: lambda: [list(itertools.accumulate(row)) for row in values.tolist()],
    }
    return Case(SUM, images=images, size=size, rivals=rivals)


def decode(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Makes the case of decoding offsets into boxes in the picture. The naive rival decodes one box at a time."""
    offsets = torch.randn((images, size, 4), generator=random).to(device)
    (anchors,) = boxes_of(random, 1, size).to(device)
    coder = BoxCoder(WEIGHTS)

    def by_torchvision(offsets: Tensor, anchors: Tensor) -> Tensor:
        return clip_boxes_to_image(coder.decode_single(offsets, anchors), (SIDE, SIDE))

    rivals = {
        OURS: lambda: multibox_decode(offsets, anchors, size=(SIDE, SIDE)),
        LIBRARY: lambda: torch.stack([by_torchvision(image, anchors) for image in offsets]),
        NAIVE: lambda: [
            [by_torchvision(one[None], anchor[None]) for one, anchor in zip(image, anchors, strict=True)]
            for image in offsets
        ],
    }
    return Case(DECODE, images=images, size=size, rivals=rivals)


def align(device: torch.device, random: torch.Generator, images: int, size: int) -> Case:
    """Makes the case of ROIAlign on regions of feature maps. The naive rival crops and resizes one region at a time."""
    features = torch.rand((images, 64, 40, 40), generator=random).to(device)
    regions = boxes_of(random, 1, size)[0].to(device)
    image_of = torch.randint(0, images, (size,), generator=random).to(device)
    scale = 40 / SIDE

    def crop_and_resize() -> list[Tensor]:
        resized = []
        for image, region in zip(image_of.tolist(), (regions * scale).tolist(), strict=True):
            left, top, right, bottom = (int(edge) for edge in region)
            crop = features[image : image + 1, :, min(top, 39) : bottom + 1, min(left, 39) : right + 1]
            resized.append(functional.interpolate(crop, size=(7, 7), mode="bilinear"))
        return resized

    def library() -> Tensor:
        return torchvision_roi_align(features, torch.cat([image_of[:, None], regions], dim=1), (7, 7), scale)

    def ours() -> Tensor:
        return roi_align(features, regions, image_of, (7, 7), spatial_scale=scale)

    return Case(ALIGN, images=images, size=size, rivals={OURS: ours, LIBRARY: library, NAIVE: crop_and_resize})
