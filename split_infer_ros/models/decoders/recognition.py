"""Recognises how an ONNX file's outputs are read, or refuses to guess.

Several layouts can have one shape. (1, 300, 6) may be 300 selected boxes, 300 boxes with one class and an objectness,
or six boxes with 296 classes. What tells them apart:

- The names of the classes in the metadata fix how many scores a box has.
- The size of the input fixes how many cells the maps of a YOLO have together. YOLOv8 and YOLOX have one box for each
  cell, YOLOv5 has three, and selected boxes are at most 1,000.
- The model runs once on an image like a photograph. Scores must then lie in 0..1, classes must be whole numbers, and
  boxes must have the scale and the order of their corners. So a map of depths is not read as boxes.

An output is accepted only if exactly one family fits. Else the model is refused, and the parameter ``decoder`` settles
it. A family that the user names must only fit the shapes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.declaration import is_declaration, parse_text, read_declaration
from split_infer_ros.models.decoders.encodings import is_unit, numbers_of_box
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.family import Family
from split_infer_ros.models.decoders.grids import count_cells
from split_infer_ros.models.decoders.layout import (
    CELL_ENCODINGS,
    UNREAD,
    Background,
    BoxEncoding,
    BoxRange,
    OutputLayout,
    Part,
    Rows,
)
from split_infer_ros.models.decoders.parts import images_of, numbers_of
from split_infer_ros.models.decoders.plausible import is_plausible
from split_infer_ros.models.decoders.registry import FAMILIES

AUTO = "auto"
DECLARED_RECIPE = "letterbox"

_LOST = {"segment": "masks", "pose": "keypoints", "obb": "angles"}  # by Ultralytics' task
_LOST_NAMES = ("mask", "keypoint", "proto")
_PROTOTYPES = 32  # maps of which YOLO's masks are made
_ELSE = (
    "Another layout is declared in FILE.yaml beside the model, or decoded by a function of yours in a Python entry "
    "(docs/guides/own_model.md)."
)


@dataclass(frozen=True, slots=True)
class Reading:
    """How a model's outputs are read, and how its images are pre-processed.

    Attributes:
        layout: of the outputs.
        recipe: the usual pre-processing, as the parameter ``preprocessing`` takes it.
    """

    layout: OutputLayout
    recipe: str


def recognise(facts: OutputFacts, wanted: str | dict[str, object] = AUTO, where: str = "decoder") -> Reading:
    """Returns how the outputs are read.

    Args:
        facts: what is known about the outputs.
        wanted: the name of a family, ``auto``, or a declaration as text or as keys and values.
        where: what holds ``wanted``, for messages.

    Raises:
        ConfigurationError: the wanted decoder cannot read the outputs, or not exactly one family fits them. The error
            lists the tensors and the decoders.
    """
    if isinstance(wanted, dict) or is_declaration(wanted):
        declared = wanted if isinstance(wanted, dict) else parse_text(wanted)
        layout = read_declaration(declared, [output.name for output in facts.outputs], where)
        check_shapes(layout, facts, where)
        return Reading(_with_range(layout, facts), DECLARED_RECIPE)
    if wanted not in (AUTO, *FAMILIES):
        raise ConfigurationError(
            f"{where} '{wanted[:60]}' is unknown; it takes one of: {', '.join((AUTO, *FAMILIES))}."
        )
    if wanted != AUTO:
        return _named(FAMILIES[wanted], facts)
    _refuse_lost(facts)
    found = _fitting(facts)
    families = {family.name: family for family, _ in found}
    if len(families) == 1:
        family, layout = found[0]
        return Reading(_with_range(layout, facts), family.recipe(layout, facts))
    if families:
        raise ConfigurationError(
            f"The outputs of {facts} can be those of {' or '.join(families)}; set decoder to the right one."
        )
    _refuse_names(facts)
    raise ConfigurationError(f"The outputs of {facts} are not recognised. {_choices(facts)} {_ELSE}")


def _fitting(facts: OutputFacts) -> list[tuple[Family, OutputLayout]]:
    """Returns the families that fit, with their layouts."""
    found = [
        (family, layout)
        for family in FAMILIES.values()
        for layout in family.find(facts)
        if family.speaks_for(layout, facts) and is_plausible(layout, facts)
    ]
    # What reads more of the outputs explains the file better: the scores of a pair may look like boxes alone.
    return [
        (family, layout) for family, layout in found if not any(layout.outputs < other.outputs for _, other in found)
    ]


def _refuse_names(facts: OutputFacts) -> None:
    """Refuses names of classes that are too many or too few, if the outputs would be recognised without them."""
    found = _fitting(replace(facts, classes=None)) if facts.classes is not None else []
    if len({family.name for family, _ in found}) == 1:
        layout = found[0][1]
        raise ConfigurationError(
            f"There are {facts.classes} labels for {facts}, whose outputs have {layout.classes} classes if they are "
            f"those of {layout.name}; labels takes a file with one name for each class."
        )


def _named(family: Family, facts: OutputFacts) -> Reading:
    """Returns the layout of the family that the user names. Values decide only between several ones."""
    layouts = family.find(facts)
    if not layouts:
        raise ConfigurationError(
            f"decoder {family.name} cannot read the outputs of {facts}: it reads {family.reads}. "
            f"{_choices(facts)} {_ELSE}"
        )
    plausible = [each for each in layouts if is_plausible(each, facts)] or list(layouts)
    layout = next((each for each in plausible if family.speaks_for(each, facts)), plausible[0])
    return Reading(_with_range(layout, facts), family.recipe(layout, facts))


def _with_range(layout: OutputLayout, facts: OutputFacts) -> OutputLayout:
    """Settles the scale of boxes by the trial, because a few small boxes in pixels look like boxes in 0..1."""
    if layout.range is not BoxRange.AUTO or layout.boxes is None or not layout.outputs <= facts.trial.keys():
        return layout
    boxes = [numbers_of(layout.boxes, layout, image) for image in images_of(layout, facts.trial)]
    if not any(each.any() for each in boxes):
        return layout
    return replace(layout, range=BoxRange.UNIT if all(map(is_unit, boxes)) else BoxRange.PIXELS)


def check_shapes(layout: OutputLayout, facts: OutputFacts, where: str) -> None:
    """Checks that the outputs have the shapes that a declaration means, as far as they are known.

    Raises:
        ConfigurationError: they have not.
    """
    shapes = _shapes(layout, facts)
    for part in layout.parts:
        _check_numbers(part, layout, [_boxes_and_numbers(shapes[name], layout)[1] for name in part.outputs], where)
    if layout.boxes is None:
        return
    if layout.peaks and layout.rows is not Rows.MAPS:
        raise ConfigurationError(f"{where} has peaks true and rows {layout.rows.value}; peaks are found in rows maps.")
    if layout.centres is not None and layout.encoding is not BoxEncoding.SIZES:
        raise ConfigurationError(
            f"{where} has centres and encoding {layout.encoding.value}; centres belong to encoding sizes."
        )
    counts = {}
    for part in layout.parts:
        if part in (layout.counts, layout.images):
            continue
        counts[str(part)] = [_boxes_and_numbers(shapes[name], layout) for name in part.outputs]
    wanted = numbers_of_box(layout)
    for _, numbers in counts[str(layout.boxes)]:
        taken = _length(layout.boxes, numbers)
        if taken is not None and taken != wanted:
            raise ConfigurationError(
                f"{where} takes the boxes from {layout.boxes}, which has {taken} numbers for each box; encoding "
                f"{layout.encoding.value} needs {wanted} ({facts})."
            )
    totals = {}
    for text, parts in counts.items():
        known = [number for number, _ in parts if number is not None]
        if len(known) == len(parts):
            totals[text] = sum(known)
    if len(set(totals.values())) > 1:
        raise ConfigurationError(
            f"{where} takes numbers of different boxes: {', '.join(f'{text} of {n}' for text, n in totals.items())} "
            f"boxes ({facts})."
        )
    total = totals.get(str(layout.boxes))
    if layout.encoding in CELL_ENCODINGS and total is not None:
        cells = count_cells(facts.height, facts.width, layout.grid.strides)
        if cells != total:
            raise ConfigurationError(
                f"{where} has strides {'/'.join(map(str, layout.grid.strides))}, whose maps have {cells} cells for "
                f"{facts.height}x{facts.width} (height x width), and {layout.boxes} has {total} boxes."
            )


def count_boxes(layout: OutputLayout, facts: OutputFacts) -> int | None:
    """Returns how many boxes an image has; None if the shapes do not say."""
    shapes = _shapes(layout, facts)
    parts = () if layout.boxes is None else layout.boxes.outputs
    counts = [_boxes_and_numbers(shapes[name], layout)[0] for name in parts]
    return None if None in counts else sum(count for count in counts if count is not None)


def _shapes(layout: OutputLayout, facts: OutputFacts) -> dict[str, tuple[int | None, ...]]:
    """Returns the shapes of outputs by name, with a batch in front: boxes (n, 4) are those of one image."""
    shapes = {output.name: output.shape for output in facts.outputs}
    if layout.boxes is not None and layout.rows is Rows.ROWS and len(shapes[layout.boxes.outputs[0]]) == 2:
        return {name: (1, *shape) for name, shape in shapes.items()}
    return shapes


def _check_numbers(part: Part, layout: OutputLayout, numbers: Sequence[int | None], where: str) -> None:
    """Checks that a part takes as many numbers of each box as it needs, at least."""
    has_background = part is layout.scores and layout.background is not Background.NONE
    needed = 2 if has_background or part is layout.centres else 1
    for count in numbers:
        taken = _length(part, count)
        if taken is not None and taken < needed:
            raise ConfigurationError(
                f"{where} takes {part}, which is {max(taken, 0)} of {count} numbers; it needs at least {needed}."
            )


def _boxes_and_numbers(shape: tuple[int | None, ...], layout: OutputLayout) -> tuple[int | None, int | None]:
    """Returns how many boxes an output has, and how many numbers for each; None for what is not known."""
    if layout.boxes is None:
        return 1, None if None in shape[1:] else math.prod(length or 0 for length in shape[1:])
    if len(shape) < 2:
        return (shape[0] if shape else 1), 1
    if layout.rows is Rows.MAPS and len(shape) == 4:
        _, numbers, height, width = shape
        return (None if height is None or width is None else height * width), numbers
    if len(shape) == 2:
        return shape[1], 1
    _, count, *others = shape
    numbers = others[-1]
    return (numbers, count) if layout.rows is Rows.COLUMNS else (count, numbers)


def _length(part: Part, numbers: int | None) -> int | None:
    """Returns how many numbers a part takes of so many."""
    if part.last is None:
        return None if numbers is None else numbers - part.first
    return (part.last if numbers is None else min(part.last, numbers)) - part.first


def _refuse_lost(facts: OutputFacts) -> None:
    """Refuses a model that gives more than boxes."""
    lost = _LOST.get(facts.task)
    named = [output.name for output in facts.named(*_LOST_NAMES)]
    if not lost and not named and any(output.rank == 3 for output in facts.outputs):
        prototypes = [each for each in facts.outputs if each.rank == 4 and each.shape[1] == _PROTOTYPES]
        lost = "masks" if len(prototypes) == 1 == len(facts.outputs) - 1 else None
    if lost or named:
        raise ConfigurationError(
            f"{facts} gives {lost or ' and '.join(named)}, which would be lost, because detections are boxes, scores "
            "and labels; use a model that detects or classifies."
        )


def _choices(facts: OutputFacts) -> str:
    """Says which decoders could be named: those whose shapes fit, or else all."""
    fitting = [family for family in FAMILIES.values() if family.name != UNREAD and family.find(facts)]
    listed = "; ".join(f"{family.name} {family.reads}" for family in fitting or FAMILIES.values())
    return f"By their shapes, decoder could be: {listed}." if fitting else f"decoder takes one of: {listed}."
