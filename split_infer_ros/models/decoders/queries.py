"""The DETR family. A fixed number of queries give one box each, and the boxes do not suppress each other."""

from __future__ import annotations

from functools import partial
from itertools import permutations

import numpy as np

from split_infer_ros.models.decoders.encodings import is_unit, softmax
from split_infer_ros.models.decoders.facts import Output, OutputFacts, are_probabilities, classes_of, rows_sum_to_one
from split_infer_ros.models.decoders.family import Family, always
from split_infer_ros.models.decoders.layout import (
    Activation,
    Background,
    BoxEncoding,
    BoxRange,
    OutputLayout,
    Part,
    PerBox,
    Suppression,
)

FIRST_QUERIES = 100  # of the first DETR, whose classes exclude each other; DETRs with sigmoids have 300 or more
WITH_BACKGROUND = (81, 92)  # lengths of COCO's logits: its classes and one more
WITHOUT_BACKGROUND = (80, 91)
MAX_QUERIES = 1000
RF_DETR = "dets"  # RF-DETR's exporter calls the boxes so. The model may have more logits than classes
_BOX_NAMES = ("box", RF_DETR)
_NAMES = ((RF_DETR, "labels"), ("logits", "pred_boxes"), ("pred_boxes", "pred_logits"))


def _pairs(facts: OutputFacts) -> list[tuple[Output, Output]]:
    """Returns the pairs of outputs that can be boxes (N, n, 4) and logits (N, n, classes), by name or by length."""
    pairs = [
        (boxes, logits)
        for boxes, logits in permutations(facts.floats(3), 2)
        if boxes.shape[2] in (4, None)
        and (boxes.shape[1] == logits.shape[1] or None in (boxes.shape[1], logits.shape[1]))
    ]
    named = [pair for pair in pairs if pair[0].mentions(*_BOX_NAMES)]
    return named or pairs


def _find_detr(name: str, facts: OutputFacts) -> list[OutputLayout]:
    layouts = [_layout(name, boxes, logits, facts) for boxes, logits in _pairs(facts)]
    return [layout for layout in layouts if layout.classes != 0]


def _layout(name: str, boxes: Output, logits: Output, facts: OutputFacts) -> OutputLayout:
    has_background = name == "detr_softmax"
    length = logits.shape[2]
    are_scores = logits.values is not None and are_probabilities(logits.values) and bool(logits.values.any())
    activation = Activation.SOFTMAX if has_background else Activation.SIGMOID
    return OutputLayout(
        name,
        Part((boxes.name,)),
        Part((logits.name,)),
        encoding=BoxEncoding.CENTRE_SIZE,
        range=BoxRange.UNIT,
        activation=Activation.NONE if are_scores else activation,
        background=Background.LAST if has_background else Background.NONE,
        per_box=PerBox.BEST if has_background else PerBox.ALL,
        suppression=Suppression.NONE,
        classes=facts.classes if length is None else length - has_background,
    )


def _speaks_for_queries(layout: OutputLayout, facts: OutputFacts) -> bool:
    """Whether names or values show that this is a DETR, and its last class is what the layout says."""
    boxes, logits = map(facts.output_of, layout.parts[:2])
    names = sorted((boxes.name, logits.name))
    if not any(names == sorted(each) for each in _NAMES):
        count = boxes.shape[1]
        if count is None or count > MAX_QUERIES or facts.strides_of(count) or boxes.values is None:
            return False
        if not is_unit(boxes.values) or logits.values is None or are_probabilities(logits.values):
            return False
    has_background = _has_background(boxes, logits, facts)
    return has_background is None or has_background == (layout.background is Background.LAST)


def _has_background(boxes: Output, logits: Output, facts: OutputFacts) -> bool | None:
    """Whether the last class means that there is no object; None if nothing tells."""
    length = logits.shape[2]
    if boxes.name == RF_DETR:
        return False  # RF-DETR has sigmoids
    if facts.classes is not None and length in (facts.classes, facts.classes + 1):
        return length == facts.classes + 1
    values = logits.values
    if values is not None and values.any():
        if are_probabilities(values):
            return rows_sum_to_one(values)
        rows = values.reshape(-1, values.shape[-1])
        if np.median(rows.max(1)) < 0:
            return False  # most queries of an image give every class a low score
        if np.median(softmax(rows, 1)[:, -1]) > 0.5:
            return True  # most queries of an image find nothing, and say so
    if length in (*WITH_BACKGROUND, *WITHOUT_BACKGROUND):
        return length in WITH_BACKGROUND
    return None if boxes.shape[1] == FIRST_QUERIES else False


def _find_rtdetr(facts: OutputFacts) -> list[OutputLayout]:
    return [
        _single("rtdetr", output, Part((output.name,), 4, None), None, classes)
        for output in facts.floats(3)
        if (classes := classes_of(output.shape[2], 4, facts))
    ]


def _find_selected_queries(facts: OutputFacts) -> list[OutputLayout]:
    return [
        _single("rtdetr_end_to_end", output, Part(name, 4, 5), Part(name, 5, 6), facts.classes)
        for output in facts.floats(3)
        if output.shape[2] in (6, None) and (name := (output.name,))
    ]


def _single(name: str, output: Output, scores: Part, labels: Part | None, classes: int | None) -> OutputLayout:
    return OutputLayout(
        name,
        Part((output.name,), 0, 4),
        scores,
        labels=labels,
        encoding=BoxEncoding.CENTRE_SIZE,
        range=BoxRange.UNIT,
        suppression=Suppression.NONE,
        classes=classes,
    )


def _speaks_for_rtdetr(layout: OutputLayout, facts: OutputFacts) -> bool:
    output = facts.output_of(layout.scores)
    length, count = output.shape[2], output.shape[1]
    if facts.is_rtdetr:
        is_selected = layout.labels is not None
        if length == 6 == 4 + (facts.classes or 0):
            return True  # two classes, or a score and a class: both layouts count, so the file is refused
        return is_selected == (length in (6, None))
    if facts.is_ultralytics or facts.suppresses_itself or count is None or count > MAX_QUERIES or facts.classes is None:
        return False  # without names, a map of depths looks the same
    values = output.values
    return (
        values is not None and bool(values[..., :4].any()) and is_unit(values[..., :4]) and not facts.strides_of(count)
    )


def _recipe_of_detr(layout: OutputLayout, facts: OutputFacts) -> str:
    """Returns ImageNet's normalisation for softmax and for RF-DETR (boxes ``dets``). Other files take 0..1."""
    is_normalised = layout.name == "detr_softmax" or RF_DETR in layout.outputs
    return "stretch_imagenet" if is_normalised else "stretch_smooth"


FAMILIES = (
    Family(
        "detr",
        "logits (N, n, classes) and boxes (N, n, 4)",
        partial(_find_detr, "detr"),
        _recipe_of_detr,
        _speaks_for_queries,
    ),
    Family(
        "detr_softmax",
        "logits (N, n, classes + 1) and boxes (N, n, 4)",
        partial(_find_detr, "detr_softmax"),
        _recipe_of_detr,
        _speaks_for_queries,
    ),
    Family("rtdetr", "(N, n, 4 + classes) with boxes in 0..1", _find_rtdetr, always("stretch"), _speaks_for_rtdetr),
    Family(
        "rtdetr_end_to_end",
        "(N, n, 6) with boxes in 0..1, score, class",
        _find_selected_queries,
        always("stretch"),
        _speaks_for_rtdetr,
    ),
)
