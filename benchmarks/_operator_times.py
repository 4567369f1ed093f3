"""Vision-specific operators against the library's own and the naive form, taking turns on the same values."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torchvision.models.detection._utils import BoxCoder
from torchvision.ops import batched_nms, box_iou, clip_boxes_to_image
from torchvision.ops import roi_align as torchvisions_roi_align

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
HEADS_IMAGES, HEADS_BOXES, HEADS_CLASSES = 16, 3234, 91  # SSDlite320's
SIDE, CLASSES, IOU, MOST = 320, 20, 0.5, 100

LONG = 10  # times a contest's time

Forms = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Contest:
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


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        sizes: of an image.
        images: given at once.
        values: at most so many in all.
        naive: values up to which the naive form takes part.
        seconds: of a contest, once each form has had its least number of turns.
        least: turns of each.
    """

    sizes: Sequence[int]
    images: Sequence[int]
    values: int
    naive: int
    seconds: float
    least: int


QUICK = Extent((10, 100, 1_000, 100_000), (1, 16), 100_000, 100, 0.12, 3)
FULL = Extent((10, 100, 300, 1_000, 3_000, 10_000, 100_000), (1, 4, 16, 64), 640_000, 1_000, 1.0, 7)


def contests(device: torch.device, extent: Extent) -> Iterator[Contest]:
    """All operators at all sizes."""
    random = torch.Generator().manual_seed(0)
    for heavy in (False, True):
        yield head(device, random, heavy)
    for images, size in itertools.product(extent.images, extent.sizes):
        if images * size <= extent.values:
            for make in (labelled, argsort, sums, decode):
                yield contest_of(make, device, random, images, size, extent)
        if size <= 1000 and images == 1:  # regions are few
            yield contest_of(align, device, random, images, size, extent)


def contest_of(
    make: Callable[[torch.device, torch.Generator, int, int], Contest],
    device: torch.device,
    random: torch.Generator,
    images: int,
    size: int,
    extent: Extent,
) -> Contest:
    """A contest without the naive form where that would take for ever."""
    made = make(device, random, images, size)
    if images * size <= extent.naive:
        return made
    return Contest(made.operator, images, size, {name: form for name, form in made.forms.items() if name != NAIVE})


def measure(contest: Contest, device: torch.device, extent: Extent) -> dict[str, list[float]]:
    """Seconds of each turn of each form, which take turns. The first turn sets up and counts only where it is long."""
    times = {name: [_seconds(form, device)] for name, form in contest.forms.items()}
    if sum(found[0] for found in times.values()) > LONG * extent.seconds:
        return times
    times = {name: [] for name in times}
    end = time.perf_counter() + extent.seconds
    for turn in itertools.count():
        if turn >= extent.least and time.perf_counter() > end:
            break
        for name in (OURS, LIBRARY) if turn % 2 else (LIBRARY, OURS):
            times[name].append(_seconds(contest.forms[name], device))
    if NAIVE in times:  # how slow it is need not be known so well
        times[NAIVE] = [_seconds(contest.forms[NAIVE], device) for _ in range(extent.least)]
    return times


def _seconds(form: Callable[[], object], device: torch.device) -> float:
    begin = time.perf_counter()
    form()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def row(contest: Contest, device: torch.device, times: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Medians in microseconds."""
    medians = {f"{name}_us": 1e6 * statistics.median(found) for name, found in times.items()}
    spreads = {f"{name}_range_us": [1e6 * min(found), 1e6 * max(found)] for name, found in times.items()}
    return {
        "operator": contest.operator,
        "device": device.type,
        "images": contest.images,
        "size": contest.size,
        "turns": len(times[OURS]),
        **medians,
        **spreads,
    }


def boxes_of(random: torch.Generator, images: int, size: int, heavy: bool = False) -> Tensor:
    """Boxes (images, size, 4) in pixels: spread over the picture, or nearly all of them on top of each other."""
    first = torch.rand((images, size, 2), generator=random) * (20 if heavy else 300)
    sides = torch.rand((images, size, 2), generator=random) * 60 + (200 if heavy else 10)
    return torch.cat([first, first + sides], dim=2)


def head(device: torch.device, random: torch.Generator, heavy: bool) -> Contest:
    """What SSDlite320 has in the end, at torchvision's own limits: scores of all classes."""
    boxes = boxes_of(random, HEADS_IMAGES, HEADS_BOXES, heavy).to(device)
    shape = (HEADS_IMAGES, HEADS_BOXES, HEADS_CLASSES)
    scores = (torch.randn(shape, generator=random) * 3).softmax(2).to(device)
    least, iou, most = 0.001, 0.55, 300

    def ours() -> Tensor:
        limits = {"iou_threshold": iou, "max_detections": most, "most_of_a_class": most}
        return box_nms(boxes, scores[..., 1:], score_threshold=least, **limits)

    def library() -> list[Tensor]:
        """As torchvision's SSD does."""
        found = []
        for its, of_classes in zip(boxes, scores, strict=True):
            some_boxes, some_scores, some_labels = [], [], []
            for label in range(1, of_classes.shape[1]):
                score = of_classes[:, label]
                able = score > least
                score, corners = score[able], its[able]
                score, best = score.topk(min(most, len(score)))
                some_boxes.append(corners[best])
                some_scores.append(score)
                some_labels.append(torch.full_like(score, label, dtype=torch.int64))
            all_boxes, all_scores = torch.cat(some_boxes), torch.cat(some_scores)
            found.append(batched_nms(all_boxes, all_scores, torch.cat(some_labels), iou)[:most])
        return found

    return Contest(HEAVY if heavy else HEAD, HEADS_IMAGES, HEADS_BOXES, {OURS: ours, LIBRARY: library})


def labelled(device: torch.device, random: torch.Generator, images: int, size: int) -> Contest:
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
    return Contest(LABELLED, images, size, forms)


def argsort(device: torch.device, random: torch.Generator, images: int, size: int) -> Contest:
    """Scores of each image in descending order. All images have as many, or the library could not do it in one go."""
    values = torch.rand(images * size, generator=random).to(device)
    offsets = torch.arange(0, images * size + 1, size, device=device)
    rows = values.view(images, size)
    forms = {
        OURS: lambda: segmented_argsort(values, offsets, descending=True),
        LIBRARY: lambda: rows.argsort(dim=1, descending=True, stable=True),
        NAIVE: lambda: [row.argsort(descending=True, stable=True) for row in rows],
    }
    return Contest(ARGSORT, images, size, forms)


def sums(device: torch.device, random: torch.Generator, images: int, size: int) -> Contest:
    """Of each image; the naive form adds one by one."""
    values = torch.rand((images, size), generator=random).to(device)
    forms = {
        OURS: lambda: prefix_sum(values),
        LIBRARY: lambda: values.cumsum(-1),
        NAIVE: lambda: [list(itertools.accumulate(row)) for row in values.tolist()],
    }
    return Contest(SUM, images, size, forms)


def decode(device: torch.device, random: torch.Generator, images: int, size: int) -> Contest:
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
    return Contest(DECODE, images, size, forms)


def align(device: torch.device, random: torch.Generator, images: int, size: int) -> Contest:
    """Regions of one map; the naive form cuts each out and resizes it."""
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

    return Contest(ALIGN, images, size, {OURS: ours, LIBRARY: library, NAIVE: cut_out})
