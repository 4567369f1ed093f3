"""Families with one output that has a box for each cell or anchor: YOLO, and NanoDet with distributions."""

from __future__ import annotations

import numpy as np

from split_infer_ros.models.decoders.facts import Output, OutputFacts, are_probabilities, classes_of
from split_infer_ros.models.decoders.family import Family, always
from split_infer_ros.models.decoders.layout import Arrangement, BoxEncoding, BoxRange, Grid, OutputLayout, Part

COCO = 80  # classes; exports without names have this number most often
ROTATED, POSED = 15 + 1, 1 + 17 * 3  # numbers of rotated boxes (DOTA) and of poses, which look like scores of classes
MIN_ANGLE, MIN_ANGLE_RATIO = 0.25, 10  # of the median: in radians, and in multiples of the largest median of a class
ANGLES = 180  # scores of a rotated box's angle, by degrees, in networks of YOLOv5's kind
ANCHORS_PER_CELL = 3  # of YOLOv5 and YOLOv7
STRIDES = (8, 16, 32)
REG_MAX = (7, 15)  # the largest distance of a distribution, in cells

YOLOX_NAME, YOLOV6_NAME = "output", "outputs"  # what their exporters call the only output


def _range_of(facts: OutputFacts) -> BoxRange:
    """Returns the scale of boxes: pixels, or either scale if the metadata says that the file is a detector."""
    is_told = facts.classes is not None and (facts.task == "detect" or "stride" in facts.metadata)
    return BoxRange.AUTO if is_told else BoxRange.PIXELS


def _find_yolov8(facts: OutputFacts) -> list[OutputLayout]:
    found = []
    for output in facts.floats(3):
        for rows, length in ((Arrangement.COLUMNS, output.shape[1]), (Arrangement.ROWS, output.shape[2])):
            classes = classes_of(length, 4, facts)
            if classes:
                found.append(_layout("yolov8", output, classes, rows=rows, scores=4, range=_range_of(facts)))
    return found


def _speaks_for_yolov8(layout: OutputLayout, facts: OutputFacts) -> bool:
    output = facts.output_of(layout.scores)
    first, second = output.shape[1:]
    count, length = (second, first) if layout.rows is Arrangement.COLUMNS else (first, second)
    if facts.is_rtdetr or facts.suppresses_itself or (facts.classes is None and _has_angle(layout, facts)):
        return False
    is_detector = facts.task == "detect" and facts.classes is not None
    if layout.rows is Arrangement.ROWS and not (is_detector and count is None):
        return _is_one_per_cell(count, length, facts) and not (facts.classes is None and _has_objectness(layout, facts))
    if is_detector:
        return count is None or length is None or count > length or bool(facts.strides_of(count))
    if length is None or (facts.classes is None and layout.classes in (ROTATED, POSED)):
        return False
    if count is None or facts.strides_of(count):
        return True
    return count > length and (output.values is None or bool(output.values.any()))  # a map of zeros tells nothing


def _has_angle(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether the last score is the angle of a rotated box: it is high for most boxes, and all other scores are not."""
    values = facts.output_of(layout.scores).values
    if values is None or layout.classes == 1 or not values.size:
        return False
    scores = values[0, 4:].T if layout.rows is Arrangement.COLUMNS else values[0, :, 4:]
    *others, last = np.median(scores, 0)
    return bool(last > MIN_ANGLE and last > MIN_ANGLE_RATIO * max(others))


def _has_objectness(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether rows of numbers belong to another family, in which the first score is an objectness."""
    output = facts.output_of(layout.scores)
    if layout.classes in (ROTATED, POSED, COCO + 1):
        return True
    if layout.classes == COCO:
        return False
    if output.values is None:
        return output.name in (YOLOX_NAME, YOLOV6_NAME)
    return "Exp" in facts.operators or bool((output.values[..., 4] == 1).all())


def _is_one_per_cell(count: int | None, length: int | None, facts: OutputFacts) -> bool:
    """Whether there are as many boxes as cells. Without names, there must be more boxes than numbers of a box."""
    is_enough = facts.classes is not None or length is None or (count is not None and count > length)
    return count is not None and is_enough and bool(facts.strides_of(count))


def _find_yolov5(facts: OutputFacts) -> list[OutputLayout]:
    return [
        _layout("yolov5", output, classes, scores=5, range=_range_of(facts))
        for output in facts.floats(3)
        if (classes := classes_of(output.shape[2], 5, facts))
    ]


def _speaks_for_yolov5(layout: OutputLayout, facts: OutputFacts) -> bool:
    if facts.is_ultralytics or facts.suppresses_itself:
        return False
    if "stride" in facts.metadata and facts.classes is not None:
        return True  # its exporter writes names and stride; YOLOX's writes nothing
    output = facts.output_of(layout.scores)
    count = output.shape[1]
    if facts.classes is None and layout.classes in (ANGLES + ROTATED - 1, ANGLES + ROTATED):
        return False
    if count is None or facts.strides_of(count, ANCHORS_PER_CELL):
        return True
    if not _is_one_per_cell(count, output.shape[2], facts) or (facts.classes is None and layout.classes == COCO - 1):
        return False
    if output.values is None:
        return output.name == YOLOV6_NAME or (output.name != YOLOX_NAME and "Exp" not in facts.operators)
    return bool((output.values[..., 4] == 1).all())  # YOLOv6's objectness, which its exporter adds


def _find_yolox(facts: OutputFacts) -> list[OutputLayout]:
    found = []
    for output in facts.floats(3):
        classes, strides = classes_of(output.shape[2], 5, facts), facts.strides_of(output.shape[1])
        if not classes or (output.shape[1] is not None and not strides):
            continue
        if "Exp" in facts.operators:  # the graph brings boxes to pixels itself
            found.append(_layout("yolox", output, classes, scores=5))
        grid = Grid(strides or STRIDES)
        found.append(_layout("yolox", output, classes, scores=5, encoding=BoxEncoding.CELLS, grid=grid))
    return found


def _speaks_for_yolox(layout: OutputLayout, facts: OutputFacts) -> bool:
    output = facts.output_of(layout.scores)
    if facts.is_ultralytics or facts.suppresses_itself or "stride" in facts.metadata:
        return False
    if (layout.encoding is not BoxEncoding.CELLS) != ("Exp" in facts.operators):
        return False
    if output.values is not None and (output.values[..., 4] == 1).all():
        return False  # YOLOv6
    is_of_yolov8 = facts.classes is None and layout.classes == COCO - 1
    is_one_per_cell = output.shape[1] is None or _is_one_per_cell(output.shape[1], output.shape[2], facts)
    return output.name != YOLOV6_NAME and is_one_per_cell and not is_of_yolov8


def _find_nanodet(facts: OutputFacts) -> list[OutputLayout]:
    found = []
    for output in facts.floats(3):
        for reg_max in REG_MAX:
            numbers = 4 * (reg_max + 1)
            strides, classes = facts.strides_of(output.shape[1]), classes_of(output.shape[2], numbers, facts)
            if strides and classes:
                # NanoDet-Plus has four levels, and distances from the corners of the cells.
                grid = Grid(strides, 0.0 if len(strides) == 4 else 0.5, reg_max + 1)
                boxes = Part((output.name,), classes, None)
                scores = Part((output.name,), 0, classes)
                encoding = BoxEncoding.DISTRIBUTIONS
                found.append(OutputLayout("nanodet", boxes, scores, encoding=encoding, grid=grid, classes=classes))
    return found


def _speaks_for_nanodet(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether the numbers behind the scores are no probabilities, in any block of 32 numbers."""
    if facts.is_ultralytics:
        return False
    values = facts.output_of(layout.scores).values
    if values is None:
        return facts.classes is not None or layout.classes == COCO
    assert layout.classes is not None
    numbers = values[0, :, layout.classes :]
    return not any(are_probabilities(part) for part in np.split(numbers, 4 * layout.grid.bins // 32, axis=1))


def _layout(
    name: str,
    output: Output,
    classes: int,
    *,
    scores: int,
    rows: Arrangement = Arrangement.ROWS,
    encoding: BoxEncoding = BoxEncoding.CENTRE_SIZE,
    range: BoxRange = BoxRange.PIXELS,
    grid: Grid | None = None,
) -> OutputLayout:
    """Returns a layout of one output: four numbers, perhaps an objectness, and the scores of all classes."""
    names = (output.name,)
    return OutputLayout(
        name,
        Part(names, 0, 4),
        Part(names, scores, None),
        objectness=Part(names, 4, 5) if scores == 5 else None,
        rows=rows,
        encoding=encoding,
        range=range,
        grid=grid or Grid(),
        classes=classes,
    )


FAMILIES = (
    Family(
        "yolov8", "(N, 4 + classes, n) or (N, n, 4 + classes)", _find_yolov8, always("letterbox"), _speaks_for_yolov8
    ),
    Family("yolov5", "(N, n, 5 + classes)", _find_yolov5, always("letterbox"), _speaks_for_yolov5),
    Family("yolox", "(N, n, 5 + classes) with one box a cell", _find_yolox, always("yolox"), _speaks_for_yolox),
    Family(
        "nanodet",
        "(N, n, classes + 32) with one box a cell",
        _find_nanodet,
        always("stretch,bgr,0..255,mean=103.53/116.28/123.675,std=57.375/57.12/58.395"),
        _speaks_for_nanodet,
    ),
)
