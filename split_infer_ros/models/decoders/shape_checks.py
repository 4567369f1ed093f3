"""Checks that outputs have the shapes that a declaration means, and counts the boxes of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.encodings import numbers_of_box
from split_infer_ros.models.decoders.facts import OutputFacts
from split_infer_ros.models.decoders.grids import count_cells
from split_infer_ros.models.decoders.layout import (
    CELL_ENCODINGS,
    Activation,
    Arrangement,
    Background,
    BoxEncoding,
    OutputLayout,
    Part,
)

Shapes = Mapping[str, tuple[int | None, ...]]
"""The shapes of outputs by name, with None for lengths that are not known."""


def check_shapes(layout: OutputLayout, facts: OutputFacts, where: str) -> None:
    """Checks that the outputs have the shapes that a declaration means. Lengths that are not known are not checked.

    Args:
        layout: what the declaration says.
        facts: what is known about the outputs.
        where: says in error messages where the declaration comes from.

    Raises:
        ConfigurationError: a shape does not fit the declaration.
    """
    shapes = _shapes(layout, facts)
    for part in layout.parts:
        _check_numbers(part, layout, [_boxes_and_numbers(shapes[name], layout)[1] for name in part.outputs], where)
    if layout.boxes is None:
        return
    if layout.peaks:
        _check_peaks(layout, shapes, where)
    if layout.centres is not None and layout.encoding is not BoxEncoding.SIZES:
        raise ConfigurationError(
            f"{where} has centres and encoding {layout.encoding.value}; centres belong to encoding sizes."
        )
    wanted = numbers_of_box(layout)
    for name in layout.boxes.outputs:
        taken = _length(layout.boxes, _boxes_and_numbers(shapes[name], layout)[1])
        if taken is not None and taken != wanted:
            raise ConfigurationError(
                f"{where} takes the boxes from {layout.boxes}, which has {taken} numbers for each box; encoding "
                f"{layout.encoding.value} needs {wanted} ({facts})."
            )
    of_boxes = [part for part in layout.parts if part is not layout.counts]
    totals = {str(part): n for part in of_boxes if (n := _num_boxes(part, layout, shapes)) is not None}
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
    return 0 if layout.boxes is None else _num_boxes(layout.boxes, layout, _shapes(layout, facts))


def _num_boxes(part: Part, layout: OutputLayout, shapes: Shapes) -> int | None:
    """Returns how many boxes of an image the outputs of a part have; None if the shapes do not say."""
    counts = [_boxes_and_numbers(shapes[name], layout)[0] for name in part.outputs]
    return None if None in counts else sum(count for count in counts if count is not None)


def _shapes(layout: OutputLayout, facts: OutputFacts) -> Shapes:
    """Returns the shapes of the outputs with a batch in front. Outputs without a batch belong to one image."""
    shapes = {output.name: output.shape for output in facts.outputs}
    if layout.boxes is not None and layout.rows is Arrangement.ROWS and len(shapes[layout.boxes.outputs[0]]) == 2:
        return {name: (1, *shape) for name, shape in shapes.items()}
    return shapes


def _check_peaks(layout: OutputLayout, shapes: Shapes, where: str) -> None:
    """Checks that the scores are maps and are used as the outputs have them, because neighbours are compared there."""
    if layout.rows is not Arrangement.MAPS:
        raise ConfigurationError(f"{where} has peaks true and rows {layout.rows.value}; peaks are found in rows maps.")
    others = {
        "objectness": layout.objectness is not None,
        "counts": layout.counts is not None,
        f"background {layout.background.value}": layout.background is not Background.NONE,
        f"activation {layout.activation.value}": layout.activation is Activation.SOFTMAX,
    }
    for other, is_there in others.items():
        if is_there:
            raise ConfigurationError(
                f"{where} has peaks true and {other}; peaks are the largest scores of an output as it is, so leave "
                f"out peaks or {other}."
            )
    for name in layout.scores.outputs:
        if len(shapes[name]) != 4:
            raise ConfigurationError(
                f"{where} has peaks true and takes the scores from {name}, which has {len(shapes[name])} dimensions; "
                "peaks are found in maps (N, classes, height, width)."
            )


def _check_numbers(part: Part, layout: OutputLayout, numbers: Sequence[int | None], where: str) -> None:
    """Checks that a part takes at least as many numbers of each box as it needs."""
    has_background = part is layout.scores and layout.background is not Background.NONE
    needed = 2 if has_background or part is layout.centres else 1
    for count in numbers:
        taken = _length(part, count)
        if taken is not None and taken < needed:
            raise ConfigurationError(
                f"{where} takes {part}, which is {max(taken, 0)} of {count} numbers; it needs at least {needed}."
            )


def _boxes_and_numbers(shape: tuple[int | None, ...], layout: OutputLayout) -> tuple[int | None, int | None]:
    """Returns how many boxes an output has, and how many numbers each box has; None for an unknown count."""
    if layout.boxes is None:
        return 1, None if None in shape[1:] else math.prod(length or 0 for length in shape[1:])
    if len(shape) < 2:
        return (shape[0] if shape else 1), 1
    if layout.rows is Arrangement.MAPS and len(shape) == 4:
        _, numbers, height, width = shape
        return (None if height is None or width is None else height * width), numbers
    if len(shape) == 2:
        return shape[1], 1
    _, count, *others = shape
    numbers = others[-1]
    return (numbers, count) if layout.rows is Arrangement.COLUMNS else (count, numbers)


def _length(part: Part, numbers: int | None) -> int | None:
    """Returns how many of a box's ``numbers`` a part takes; None if that is not known."""
    if part.last is None:
        return None if numbers is None else numbers - part.first
    return (part.last if numbers is None else min(part.last, numbers)) - part.first
