"""Families of networks that give all boxes, with the scores of all classes in a second output.

There may also be two such outputs for each level.
"""

from __future__ import annotations

import math
from itertools import permutations, product

import numpy as np

from split_infer_ros.models.decoders.encodings import is_unit
from split_infer_ros.models.decoders.facts import Output, OutputFacts, are_corners, are_probabilities, rows_sum_to_one
from split_infer_ros.models.decoders.family import Family, always
from split_infer_ros.models.decoders.layout import (
    Activation,
    Arrangement,
    Background,
    BoxEncoding,
    BoxRange,
    Grid,
    OutputLayout,
    Part,
    PerBox,
    Suppression,
)
from split_infer_ros.models.decoders.selected import TENSORFLOW
from split_infer_ros.models.decoders.yolo import REG_MAX

MIN_BOXES = 1001  # of a network that does not select its boxes; fewer are possible if they belong to a map's cells
HEAT_MAP_STRIDES = (4, 2, 8)
PICODET = "stretch_imagenet"
CENTERNET = "stretch,bgr,mean=0.408/0.447/0.47,std=0.289/0.274/0.278"


def _find_scored(facts: OutputFacts) -> list[OutputLayout]:
    """Finds boxes (N, n, 4) or (N, n, 1, 4), and scores (N, n, classes)."""
    found = []
    floats = [output for output in facts.outputs if not output.is_integer]
    for boxes, scores in permutations(floats, 2):
        are_boxes = boxes.shape[-1:] == (4,) and (boxes.rank == 3 or (boxes.rank == 4 and boxes.shape[2] == 1))
        if are_boxes and scores.rank == 3 and len({scores.shape[1], boxes.shape[1]} - {None}) < 2:
            found.append(_scored(boxes, scores, facts))
    named = [layout for layout in found if facts.output_of(layout.boxes).mentions("box")]
    return named or found


def _scored(boxes: Output, scores: Output, facts: OutputFacts) -> OutputLayout:
    """Returns the layout that the values of the trial show: corners or centres, with a background or without."""
    background = _background(scores, facts)
    length = scores.shape[2]
    are_centres = boxes.values is not None and not are_corners(boxes.values)
    return OutputLayout(
        "boxes_scores",
        Part((boxes.name,)),
        Part((scores.name,)),
        encoding=BoxEncoding.CENTRE_SIZE if are_centres else BoxEncoding.CORNERS,
        range=BoxRange.AUTO,
        background=background,
        per_box=PerBox.BEST if background is Background.NONE else PerBox.ALL,
        classes=facts.classes if length is None else length - (background is not Background.NONE),
    )


def _background(scores: Output, facts: OutputFacts) -> Background:
    """Returns the background: the class of most boxes, first or last, if the scores of each box sum to 1."""
    length, values = scores.shape[2], scores.values
    if facts.classes is not None and length == facts.classes:
        return Background.NONE
    if values is None or length is None or length < 2 or not rows_sum_to_one(values):
        return Background.NONE
    most = int(np.bincount(values.reshape(-1, length).argmax(1), minlength=length).argmax())
    return Background.LAST if most == length - 1 and most else Background.FIRST


def _speaks_for_scored(layout: OutputLayout, facts: OutputFacts) -> bool:
    boxes = facts.output_of(layout.boxes)
    if boxes.mentions(TENSORFLOW):
        return False  # TensorFlow's boxes before it selects among them
    count = boxes.shape[1]
    if count is None or facts.classes not in (None, layout.classes):
        return count is None
    return count >= MIN_BOXES or bool(facts.strides_of(count) or facts.strides_of(count, 3))


def _find_levels(facts: OutputFacts) -> list[OutputLayout]:
    """Finds PicoDet's and NanoDet's outputs: scores and distributions for each level, as rows or as maps."""
    kinds = product(REG_MAX, (Arrangement.ROWS, Arrangement.MAPS))
    return [layout for reg_max, rows in kinds if (layout := _levels(facts, rows, reg_max + 1)) is not None]


def _levels(facts: OutputFacts, rows: Arrangement, bins: int) -> OutputLayout | None:
    axis, rank = (2, 3) if rows is Arrangement.ROWS else (1, 4)
    outputs = facts.floats(rank)
    boxes = [output for output in outputs if output.shape[axis] == 4 * bins]
    scores = [output for output in outputs if output.shape[axis] not in (4 * bins, None)]
    classes = {output.shape[axis] for output in scores}
    if len(boxes) < 2 or len(boxes) != len(scores) or len(classes) != 1:
        return None
    boxes, scores = (sorted(group, key=lambda output: -(_cells(output, rows) or 0)) for group in (boxes, scores))
    counts = [_cells(output, rows) for output in boxes]
    if counts != [_cells(output, rows) for output in scores] or None in counts:
        return None
    strides = facts.strides_of(sum(count for count in counts if count is not None))
    length = classes.pop()
    if len(strides) != len(boxes) or length is None or facts.classes not in (None, length):
        return None
    values = [output.values for output in scores if output.values is not None]
    are_logits = not all(map(are_probabilities, values))
    return OutputLayout(
        "distributions",
        Part(tuple(output.name for output in boxes)),
        Part(tuple(output.name for output in scores)),
        rows=rows,
        encoding=BoxEncoding.DISTRIBUTIONS,
        grid=Grid(strides, 0.5, bins),
        activation=Activation.SIGMOID if are_logits else Activation.NONE,
        classes=length,
    )


def _cells(output: Output, rows: Arrangement) -> int | None:
    lengths = output.shape[1:2] if rows is Arrangement.ROWS else output.shape[2:]
    known = [length for length in lengths if length is not None]
    return math.prod(known) if len(known) == len(lengths) else None


def _find_centernet(facts: OutputFacts) -> list[OutputLayout]:
    """Finds a heat map (N, classes, h, w), sizes (N, 2, h, w) and perhaps distances of centres (N, 2, h, w)."""
    maps = facts.floats(4)
    stride = next((each for each in HEAT_MAP_STRIDES if all(_is_map(output, facts, each) for output in maps)), None)
    heat = [output for output in maps if output.shape[1] != 2 or output.mentions("hm", "heat")]
    pairs = [output for output in maps if output not in heat]
    sizes = [output for output in pairs if output.mentions("wh", "size")]
    distances = [output for output in pairs if output not in sizes]
    if stride is None or len(heat) != 1 or len(sizes) != 1 or len(distances) > 1:
        return []
    classes, values = heat[0].shape[1], heat[0].values
    if classes is None or facts.classes not in (None, classes):
        return []
    return [
        OutputLayout(
            "centernet",
            Part((sizes[0].name,)),
            Part((heat[0].name,)),
            centres=Part((distances[0].name,)) if distances else None,
            rows=Arrangement.MAPS,
            encoding=BoxEncoding.SIZES,
            grid=Grid((stride,), 0.0 if distances else 0.5),
            activation=Activation.NONE if are_probabilities(values) else Activation.SIGMOID,
            per_box=PerBox.ALL,
            suppression=Suppression.NONE,
            peaks=True,
            classes=classes,
        )
    ]


def _is_map(output: Output, facts: OutputFacts, stride: int) -> bool:
    return output.shape[2:] == (-(-facts.height // stride), -(-facts.width // stride))


def _recipe_of_scored(layout: OutputLayout, facts: OutputFacts) -> str:
    """Returns the pre-processing. Networks that give 0..1 were trained on stretched images.

    If they have a background class as well, their grey values lie around 0.
    """
    values = facts.output_of(layout.boxes).values
    if values is not None and is_unit(values) and layout.background is not Background.NONE:
        return "stretch,rgb,0..255,mean=127/127/127,std=128/128/128"
    return "stretch" if values is not None and is_unit(values) else "letterbox"


FAMILIES = (
    Family(
        "boxes_scores",
        "boxes (N, n, 4) and scores (N, n, classes)",
        _find_scored,
        _recipe_of_scored,
        _speaks_for_scored,
    ),
    Family(
        "distributions",
        "for each level, scores (N, n, classes) and distributions (N, n, 32)",
        _find_levels,
        always(PICODET),
    ),
    Family(
        "centernet",
        "heat map (N, classes, h, w), sizes (N, 2, h, w), distances (N, 2, h, w)",
        _find_centernet,
        always(CENTERNET),
    ),
)
