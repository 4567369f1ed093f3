"""Families of networks that select their boxes themselves. They give one score and one class for each box."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy.typing as npt

from split_infer_ros.models.decoders.encodings import is_unit
from split_infer_ros.models.decoders.facts import Output, OutputFacts, are_corners, are_probabilities, are_whole
from split_infer_ros.models.decoders.family import Family, always
from split_infer_ros.models.decoders.layout import BoxEncoding, BoxRange, OutputLayout, Part, Suppression

Values = npt.NDArray[Any]

MAX_SELECTED = 1000  # boxes; usual are 100 and 300
TENSORFLOW = "detection_boxes"  # part of the names of TensorFlow's boxes, which have rows before columns
_LABEL_NAMES, _COUNT_NAMES = ("label", "class", "cls"), ("num", "valid")
_COMBINED = "valid_detections"  # an output of TensorFlow's combined suppression, which takes boxes in either order
_SIZES = "target_sizes"
_NAMELESS = "unk__"  # TensorFlow's converter begins symbols of open lengths so
_STRETCHED, _CORNER, _OF_TENSORFLOW = "stretch_imagenet", "letterbox_corner", "stretch,rgb,0..255"


def _find_end_to_end(facts: OutputFacts) -> list[OutputLayout]:
    return [
        _layout("end_to_end", Part(name, 0, 4), Part(name, 4, 5), Part(name, 5, 6), facts)
        for output in facts.floats(3)
        if output.shape[2] in (6, None) and (name := (output.name,))
    ]


def _speaks_for_end_to_end(layout: OutputLayout, facts: OutputFacts) -> bool:
    if facts.is_rtdetr:
        return False
    if facts.suppresses_itself:
        return True
    if facts.task == "detect" and facts.classes is not None and facts.outputs[0].shape[1] == 4 + facts.classes:
        return False
    _, count, length = facts.output_of(layout.boxes).shape
    if length is None:
        return False
    return count is None or (count <= MAX_SELECTED and not facts.strides_of(count) and not facts.strides_of(count, 3))


def _find_yolov7(facts: OutputFacts) -> list[OutputLayout]:
    return [
        _layout("yolov7", Part(name, 1, 5), Part(name, 6, 7), Part(name, 5, 6), facts)
        for output in facts.floats(2)
        if output.shape[1] == 7 and (name := (output.name,))
    ]


def _speaks_for_yolov7(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether the boxes of all images follow each other, so that the first length is no batch."""
    output = facts.output_of(layout.boxes)
    if output.values is not None and output.values.any():
        return are_rows_of_yolov7(output.values)
    return not has_batch_in_front(output.name, facts)


def are_rows_of_yolov7(values: Values) -> bool:
    """Whether values (n, 7) can be the n boxes of one image, as exporters of YOLOv7 write them.

    The numbers of a box are the image's number, which is 0, then four corners, the class and the score.
    """
    are_of_image = values.shape[1:] == (7,) and bool((values[:, 0] == 0).all())
    return are_of_image and are_corners(values[:, 1:5]) and are_whole(values[:, 5]) and are_probabilities(values[:, 6])


def has_batch_in_front(name: str, facts: OutputFacts) -> bool:
    """Whether the first length of an output is the number of images.

    What the file states and what a run on one image gave must agree with that. The converter of TensorFlow gives every
    open length a name of its own, which tells nothing.
    """
    place = [tensor.name for tensor in facts.graph.outputs].index(name)
    stated = _first_dimension(facts.graph.proto.graph.output[place])
    images = next(value for value in facts.graph.proto.graph.input if value.name == facts.graph.inputs[0].name)
    output = facts.outputs[place]
    if output.values is not None and len(output.values) != 1:
        return False
    return stated in (None, "", "1", _first_dimension(images)) or stated.startswith(_NAMELESS)


def _first_dimension(value: object) -> str | None:
    """Returns the first length of a value as the file states it: a number, a symbol, or nothing."""
    dimensions = value.type.tensor_type.shape.dim  # type: ignore[attr-defined]
    if not dimensions:
        return None
    return str(dimensions[0].dim_value) if dimensions[0].HasField("dim_value") else str(dimensions[0].dim_param)


def _find_paddle(facts: OutputFacts) -> list[OutputLayout]:
    """Finds Paddle's multi-class suppression: class, score and corners, (n, 6), and the boxes of each image, (N,)."""
    has_counts = any(output.rank == 1 and output.is_integer for output in facts.outputs)
    return [
        _layout("paddle", Part(name, 2, 6), Part(name, 1, 2), Part(name, 0, 1), facts)
        for output in facts.floats(2)
        if has_counts and output.shape[1] == 6 and (name := (output.name,))
    ]


def _find_torchvision(facts: OutputFacts) -> list[OutputLayout]:
    """Finds boxes (N, n, 4), labels (N, n) and scores (N, n), or the same without the batch."""
    found = []
    for boxes, labels, scores in permutations(facts.outputs, 3):
        if boxes.rank not in (2, 3) or {labels.rank, scores.rank} != {boxes.rank - 1}:
            continue
        if boxes.shape[-1] not in (4, None) or boxes.is_integer or scores.is_integer or not _are_labels(labels, scores):
            continue
        if len({boxes.shape[-2], labels.shape[-1], scores.shape[-1]} - {None}) > 1:
            continue
        layout = _layout("torchvision", Part((boxes.name,)), Part((scores.name,)), Part((labels.name,)), facts)
        # TensorFlow has rows before columns, in 0..1, and classes from 1. EfficientNMS's names are the same for pixels.
        if boxes.mentions(TENSORFLOW) and (boxes.values is None or is_unit(boxes.values)):
            layout = replace(layout, encoding=BoxEncoding.CORNERS_YX, range=BoxRange.UNIT, first_class=1)
        found.append(layout)
    return found


def _are_labels(labels: Output, scores: Output) -> bool:
    """Whether the first of two outputs has the classes, by its dtype or the names of both."""
    return labels.is_integer or (labels.mentions(*_LABEL_NAMES) and not scores.mentions(*_LABEL_NAMES))


def _speaks_for_triple(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether the order of a box's numbers is known. In a square input, values do not show it."""
    is_combined = any(output.mentions(_COMBINED) for output in facts.outputs)
    return facts.output_of(layout.boxes).mentions(TENSORFLOW) or not is_combined


def _find_counted(facts: OutputFacts) -> list[OutputLayout]:
    """Finds the same as ``_find_torchvision`` with the number of valid boxes, (N,) or (N, 1).

    TensorFlow, EfficientNMS and their like give such outputs.
    """
    found = []
    for layout in _find_torchvision(facts):
        for counts in facts.outputs:
            is_count = counts.rank == 1 or (counts.rank == 2 and counts.shape[1] == 1)
            if is_count and counts.name not in layout.outputs and counts.mentions(*_COUNT_NAMES):
                found.append(replace(layout, name="counted", counts=Part((counts.name,))))
    return found


def _find_dets(facts: OutputFacts) -> list[OutputLayout]:
    """Finds corners and score (N, n, 5), and classes (N, n)."""
    return [
        _layout("dets", Part((dets.name,), 0, 4), Part((dets.name,), 4, 5), Part((labels.name,)), facts)
        for dets in facts.outputs
        for labels in facts.outputs
        if dets.rank == labels.rank + 1 >= 2
        and dets.shape[-1] == 5
        and not dets.is_integer
        and (labels.is_integer or labels.mentions(*_LABEL_NAMES))
    ]


def _layout(name: str, boxes: Part, scores: Part, labels: Part, facts: OutputFacts) -> OutputLayout:
    return OutputLayout(
        name, boxes, scores, labels=labels, range=BoxRange.AUTO, suppression=Suppression.NONE, classes=facts.classes
    )


def _recipe_of_torchvision(layout: OutputLayout, facts: OutputFacts) -> str:
    """Returns the pre-processing. Networks that give 0..1 or take the image's size were trained on stretched images."""
    if layout.encoding is BoxEncoding.CORNERS_YX:
        return _OF_TENSORFLOW
    if any(_SIZES in name for name in facts.inputs):
        return "stretch_smooth"  # RT-DETR and its kin
    values = facts.output_of(layout.boxes).values
    return _STRETCHED if values is not None and is_unit(values) else _CORNER


def _recipe_of_counted(layout: OutputLayout, facts: OutputFacts) -> str:
    return _OF_TENSORFLOW if layout.encoding is BoxEncoding.CORNERS_YX else "letterbox"


FAMILIES = (
    Family(
        "end_to_end", "(N, n, 6): corners, score, class", _find_end_to_end, always("letterbox"), _speaks_for_end_to_end
    ),
    Family("yolov7", "(n, 7): image, corners, class, score", _find_yolov7, always("letterbox"), _speaks_for_yolov7),
    Family("paddle", "(n, 6): class, score, corners; and counts (N,)", _find_paddle, always(_STRETCHED)),
    Family(
        "torchvision",
        "boxes (N, n, 4), labels (N, n) and scores (N, n)",
        _find_torchvision,
        _recipe_of_torchvision,
        _speaks_for_triple,
    ),
    Family(
        "counted",
        "boxes (N, n, 4), scores (N, n), classes (N, n) and their number (N,)",
        _find_counted,
        _recipe_of_counted,
        _speaks_for_triple,
    ),
    Family(
        "dets", "corners and score (N, n, 5), labels (N, n)", _find_dets, always("letterbox_corner,imagenet,fill=0")
    ),
)
