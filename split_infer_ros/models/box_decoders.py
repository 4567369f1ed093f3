"""Decoding of the YOLO family's outputs, which hold a box for each cell or anchor of an image.

Few of an image's thousands of boxes reach the threshold. Boxes below it are left out first, and only the rest is
transposed, converted and suppressed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.vision_ops.box_nms import box_nms
from split_infer_ros.vision_ops.host_arrays import to_host

CANDIDATES_PER_DETECTION = 4  # that are read first
STRIDES = (8, 16, 32)  # pixels of a cell's side in each map of YOLOX


def decode_yolov8(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    """Reads (N, 4 + classes, n): centre and size in pixels of the input, then scores 0..1 of all classes.

    Each box has its best class. Boxes are suppressed class by class.
    """
    (raw,) = outputs
    return [_best_columns(image, best, limits) for image, best in zip(raw, raw[:, 4:].amax(1), strict=True)]


def decode_yolov5(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    """Reads (N, n, 5 + classes): centre and size in pixels of the input, objectness, then scores of all classes.

    A box's score is its objectness times its best class's score. Boxes are suppressed class by class.
    """
    (raw,) = outputs
    detections = []
    for image in raw:
        rows = image[image[:, 4] > limits.score_threshold]
        scores, labels = _best_class(rows)
        detections.append(_suppressed(corners(rows[:, :4]), scores, labels, limits))
    return detections


class YoloxDecoder:
    """Reads YOLOX's (N, n, 5 + classes) as it is exported by default, with boxes in cells.

    The first two numbers are the centre's distance from the cell's corner, and the next two the logarithms of width and
    height, all in cells. Objectness and scores are 0..1 already.

    Args:
        height, width: the size of the input in pixels.
    """

    def __init__(self, height: int, width: int) -> None:
        corners_of_cells, strides = [], []
        for stride in STRIDES:
            rows, columns = -(-height // stride), -(-width // stride)
            y, x = torch.meshgrid(torch.arange(rows).float(), torch.arange(columns).float(), indexing="ij")
            corners_of_cells.append(torch.stack((x.flatten(), y.flatten()), 1))
            strides.append(torch.full((rows * columns, 1), float(stride)))
        self._cells, self._strides = torch.cat(corners_of_cells), torch.cat(strides)

    def __call__(self, outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Returns the detections of each image; see ``decode_yolov5``."""
        (raw,) = outputs
        cells, strides = self._cells.to(raw.device), self._strides.to(raw.device)
        detections = []
        for image in raw:
            places = (image[:, 4] > limits.score_threshold).nonzero().flatten()
            rows, steps = image[places], strides[places]
            scores, labels = _best_class(rows)
            centres, sizes = (rows[:, :2] + cells[places]) * steps, rows[:, 2:4].exp() * steps
            detections.append(_suppressed(corners(torch.cat((centres, sizes), 1)), scores, labels, limits))
        return detections


def decode_end_to_end(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    """Reads (N, n, 6): corners in pixels of the input, score, class. The network suppressed its boxes itself."""
    (raw,) = outputs
    return best_of_each(raw[..., :4], raw[..., 4], raw[..., 5].long(), limits)


def best_of_each(boxes: Tensor, scores: Tensor, labels: Tensor, limits: Limits) -> list[Detections]:
    """Returns the best boxes of each image: ``best_of`` for boxes (N, n, 4), scores (N, n) and labels (N, n)."""
    return [best_of(*image, limits) for image in zip(boxes, scores, labels, strict=True)]


def best_of(boxes: Tensor, scores: Tensor, labels: Tensor, limits: Limits) -> Detections:
    """Returns an image's best boxes above the threshold, without suppression.

    Args:
        boxes: (n, 4), left, top, right, bottom in pixels of the input.
        scores: (n,), 0..1.
        labels: int64 (n,).
        limits: which detections are kept.
    """
    places = (scores > limits.score_threshold).nonzero().flatten()  # first, because NaN would be sorted to the front
    scores, order = scores[places].float().sort(descending=True, stable=True)
    kept = places[order[: limits.max_detections]]
    return Detections(boxes[kept].float(), scores[: limits.max_detections], labels[kept])


def corners(boxes: Tensor) -> Tensor:
    """Converts boxes (..., 4) from centre and size to left, top, right, bottom."""
    centres, halves = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centres - halves, centres + halves), -1)


def _best_columns(image: Tensor, best: Tensor, limits: Limits) -> Detections:
    """Returns the detections of an image (4 + classes, n) whose boxes have the best scores (n,).

    If many boxes reach the threshold, it reads only the best of them first. If these give all the detections that are
    wanted, the others change nothing: a box suppresses only boxes of lower or equal score that come later.
    """
    places = (best > limits.score_threshold).nonzero().flatten()
    scores = best[places]
    count = CANDIDATES_PER_DETECTION * limits.max_detections
    if 0 < count < len(places):
        is_first = scores >= scores.topk(count).values[-1]
        detections = _suppressed_columns(image, places[is_first], scores[is_first], limits)
        if len(detections) == limits.max_detections:
            return detections
    return _suppressed_columns(image, places, scores, limits)


def _suppressed_columns(image: Tensor, places: Tensor, scores: Tensor, limits: Limits) -> Detections:
    columns = image.index_select(1, places)
    return _suppressed(corners(columns[:4].T), scores, _first_best(columns[4:]), limits)


def _first_best(scores: Tensor) -> Tensor:
    """Returns each column's class of the best score, int64 (n,). On a CPU, NumPy takes a quarter of torch's time."""
    return scores.argmax(0) if scores.is_cuda else torch.from_numpy(to_host(scores).argmax(0))


def _best_class(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scores (n,) and labels (n,) of rows (n, 5 + classes)."""
    if not len(rows):
        return rows.new_zeros(0), rows.new_zeros(0, dtype=torch.int64)
    scores, labels = (rows[:, 5:] * rows[:, 4:5]).max(1)
    return scores, labels


def _suppressed(boxes: Tensor, scores: Tensor, labels: Tensor, limits: Limits) -> Detections:
    """Returns one image's detections of boxes (n, 4), scores (n,) and labels (n,).

    ``suppress`` does the same for a batch. For one image it takes more operations, which cost time on a cold cache.
    """
    boxes, scores = boxes.float(), scores.float()
    (places,) = box_nms(
        boxes[None],
        scores[None],
        labels[None],
        score_threshold=limits.score_threshold,
        iou_threshold=limits.nms_threshold,
        max_detections=limits.max_detections,
    )
    kept = places[places >= 0]
    return Detections(boxes[kept], scores[kept], labels[kept])
