"""Recognises how an ONNX file's outputs are read, or refuses to guess.

Several layouts can have one shape. (1, 300, 6) may be 300 selected boxes, 300 boxes with one class and an objectness,
or six boxes with 296 classes. What tells them apart:

- The names of the classes in the metadata fix how many scores a box has.
- The size of the input fixes how many cells the maps of a YOLO have together. YOLOv8 and YOLOX have one box for each
  cell, YOLOv5 has three, and selected boxes are at most 1,000.
- The model runs once on an image like a photograph. Scores must then lie in 0..1, classes must be whole numbers, and
  boxes must have the scale and the order of their corners. So a depth map is not read as boxes.

An output is accepted only if exactly one family fits. Otherwise the model is refused, and the user sets the parameter
``decoder``. A family that the user names need only fit the shapes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.declaration import check_keys, is_declaration, parse_text, read_declaration
from split_infer_ros.models.decoders.encodings import is_unit
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.family import Family
from split_infer_ros.models.decoders.layout import UNREAD, BoxRange, OutputLayout
from split_infer_ros.models.decoders.parts import images_of, numbers_of
from split_infer_ros.models.decoders.plausible import is_plausible
from split_infer_ros.models.decoders.registry import FAMILIES
from split_infer_ros.models.decoders.shape_checks import check_shapes
from split_infer_ros.models.onnx_options import AUTO, DECODERS

DECLARED_RECIPE = "letterbox"

_LOST = {"segment": "masks", "pose": "keypoints", "obb": "angles"}  # by Ultralytics' task
_LOST_NAMES = ("mask", "keypoint", "proto")
_PROTOTYPES = 32  # maps of which YOLO's masks are made
_ELSE = (
    "Another layout is declared in FILE.yaml beside the model, or decoded by a function of yours in a Python entry "
    "(docs/guides/own_model.md)."
)


@dataclass(frozen=True, slots=True)
class OutputReading:
    """How a model's outputs are read, and how its images are pre-processed.

    Attributes:
        layout: the layout of the outputs.
        recipe: the usual pre-processing, as the parameter ``preprocessing`` takes it.
    """

    layout: OutputLayout
    recipe: str


def recognise(facts: OutputFacts, wanted: str | dict[str, object] = AUTO, where: str = "decoder") -> OutputReading:
    """Returns how the outputs are read.

    Args:
        facts: what is known about the outputs.
        wanted: the name of a family, ``auto``, or a declaration as text or as keys and values.
        where: says in error messages where ``wanted`` comes from.

    Raises:
        ConfigurationError: the wanted decoder cannot read the outputs, or not exactly one family fits them. The error
            lists the tensors and the decoders.
    """
    if isinstance(wanted, dict) or is_declaration(wanted):
        declared = wanted if isinstance(wanted, dict) else parse_text(wanted)
        layout = read_declaration(declared, [output.name for output in facts.outputs], where)
        check_keys(declared, where)
        check_shapes(layout, facts, where)
        return OutputReading(_with_range(layout, facts), DECLARED_RECIPE)
    if wanted not in DECODERS:
        raise ConfigurationError(f"{where} '{wanted[:60]}' is unknown; it takes one of: {', '.join(DECODERS)}.")
    if wanted != AUTO:
        return _named(FAMILIES[wanted], facts)
    _refuse_lost(facts)
    found = _fitting(facts)
    families = {family.name: family for family, _ in found}
    if len(families) == 1:
        family, layout = found[0]
        return OutputReading(_with_range(layout, facts), family.recipe(layout, facts))
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
    # A layout that reads more outputs explains the file better: taken alone, the scores of a pair may look like boxes.
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


def _named(family: Family, facts: OutputFacts) -> OutputReading:
    """Returns the layout of the family that the user names. Values decide only between several layouts."""
    layouts = family.find(facts)
    if not layouts:
        raise ConfigurationError(
            f"decoder {family.name} cannot read the outputs of {facts}: it reads {family.reads}. "
            f"{_choices(facts)} {_ELSE}"
        )
    plausible = [each for each in layouts if is_plausible(each, facts)] or list(layouts)
    layout = next((each for each in plausible if family.speaks_for(each, facts)), plausible[0])
    return OutputReading(_with_range(layout, facts), family.recipe(layout, facts))


def _with_range(layout: OutputLayout, facts: OutputFacts) -> OutputLayout:
    """Settles the scale of boxes by the trial, because a few small boxes in pixels look like boxes in 0..1."""
    if layout.range is not BoxRange.AUTO or layout.boxes is None or not layout.outputs <= facts.trial.keys():
        return layout
    boxes = [numbers_of(layout.boxes, layout, image) for image in images_of(layout, facts.trial)]
    if not any(each.any() for each in boxes):
        return layout
    return replace(layout, range=BoxRange.UNIT if all(map(is_unit, boxes)) else BoxRange.PIXELS)


def _refuse_lost(facts: OutputFacts) -> None:
    """Refuses a model that gives more than boxes."""
    lost = _LOST.get(facts.task)
    named = [output.name for output in facts.outputs if output.mentions(*_LOST_NAMES)]
    if not lost and not named and any(output.rank == 3 for output in facts.outputs):
        prototypes = [each for each in facts.outputs if each.rank == 4 and each.shape[1] == _PROTOTYPES]
        lost = "masks" if len(prototypes) == 1 == len(facts.outputs) - 1 else None
    if lost or named:
        raise ConfigurationError(
            f"{facts} gives {lost or ' and '.join(named)}, which would be lost, because detections are boxes, scores "
            "and labels; use a model that detects or classifies."
        )


def _choices(facts: OutputFacts) -> str:
    """Says which decoders the user could name: those that fit the shapes, or else all."""
    fitting = [family for family in FAMILIES.values() if family.name != UNREAD and family.find(facts)]
    listed = "; ".join(f"{family.name} {family.reads}" for family in fitting or FAMILIES.values())
    return f"By their shapes, decoder could be: {listed}." if fitting else f"decoder takes one of: {listed}."
