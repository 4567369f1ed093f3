"""Converts layouts to keys and values, and back.

A user declares a layout in this form, in a side file or in the parameter ``decoder``. The cache keeps the layouts of
inspected files in the same form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.layout import (
    UNREAD,
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

DECLARED = "declared"  # the name of a layout that a user wrote
MAX_CHARACTERS = 4096  # of a declaration in a parameter
MAX_CLASSES = 100_000
MAX_LEVELS, MAX_STRIDE, MAX_BINS = 16, 1024, 256

_PARTS = {  # by key
    "boxes": "boxes",
    "scores": "scores",
    "classes": "labels",
    "objectness": "objectness",
    "centres": "centres",
    "counts": "counts",
}
_CHOICES: dict[str, tuple[str, type[Enum]]] = {
    "rows": ("rows", Arrangement),
    "encoding": ("encoding", BoxEncoding),
    "range": ("range", BoxRange),
    "activation": ("activation", Activation),
    "background": ("background", Background),
    "per_box": ("per_box", PerBox),
    "nms": ("suppression", Suppression),
}
_GRID = ("strides", "offset", "bins", "anchors", "variances")
_OTHERS = ("peaks", "first_class", "num_classes", "name")
_OF_CLASSIFIERS = ("scores", "activation", "background", "num_classes")
KEYS = (*_PARTS, *_CHOICES, *_GRID, *_OTHERS[:-1])
_SLICE = re.compile(r"(.+)\[(\d{0,6}):(\d{0,6})\]")


def is_declaration(text: str) -> bool:
    """Whether a value of the parameter ``decoder`` is a declaration, ``key=value,key=value``, and no family's name."""
    return "=" in text


def parse_text(text: str) -> dict[str, str]:
    """Reads a declaration of the form ``key=value,key=value``. Returns its values by key.

    Raises:
        ConfigurationError: the text is too long or does not have this form, or a key comes twice.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(f"decoder has {len(text):,} characters; a declaration has at most {MAX_CHARACTERS:,}.")
    declared: dict[str, str] = {}
    for entry in filter(None, (entry.strip() for entry in text.split(","))):
        key, separator, value = (part.strip() for part in entry.partition("="))
        if not separator or not key or not value or key in declared:
            raise ConfigurationError(
                f"decoder has the entry '{entry}'; a declaration takes key=value, each key once, with commas between. "
                f"Keys are: {', '.join(KEYS)}."
            )
        declared[key] = value
    return declared


def read_declaration(declared: Mapping[str, Any], outputs: Sequence[str], where: str) -> OutputLayout:
    """Returns the layout that a mapping of keys to values declares.

    Args:
        declared: text, numbers or lists by key.
        outputs: the names of the model's outputs.
        where: says in error messages where the declaration comes from.

    Raises:
        ConfigurationError: a key or value is unknown or missing, or the model has no such output.
    """
    unknown = [key for key in declared if key not in (*KEYS, *_OTHERS)]
    if unknown:
        raise ConfigurationError(f"{where} has the key '{str(unknown[0])[:60]}'; keys are: {', '.join(KEYS)}.")
    if declared.get("name") == UNREAD:
        return OutputLayout(UNREAD, None, Part(()))
    if "scores" not in declared:
        raise ConfigurationError(f"{where} does not say which output holds the scores; add scores with its name.")

    def found(key: str, field: str, read: Callable[[Any], Any], takes: str) -> dict[str, Any]:
        if key not in declared:
            return {}
        try:
            return {field: read(declared[key])}
        except (ValueError, TypeError, KeyError, OverflowError):
            value = str(declared[key])[:120]
            raise ConfigurationError(f"{where} has {key} '{value}'; it takes {takes}.") from None

    fields: dict[str, Any] = {"name": DECLARED, "boxes": None}
    for key, field in _PARTS.items():
        takes = f"an output ({', '.join(outputs)}), perhaps with a range of its numbers, such as {outputs[0]}[0:4]"
        fields |= found(key, field, lambda value: _part(value, outputs), takes)
    for key, (field, kind) in _CHOICES.items():
        fields |= found(key, field, kind, f"one of: {', '.join(str(member.value) for member in kind)}")
    grid: dict[str, Any] = {}
    grid |= found("strides", "strides", _strides, f"up to {MAX_LEVELS} whole numbers of pixels, such as 8/16/32")
    grid |= found("offset", "offset", lambda value: _number(value, 0, 1), "a number of cells from 0 to 1")
    grid |= found("bins", "bins", lambda value: _integer(value, 2, MAX_BINS), f"a whole number from 2 to {MAX_BINS}")
    grid |= found("anchors", "anchors", _text, "the path of a file")
    grid |= found("variances", "variances", _variances, "two positive numbers, such as 0.1/0.2")
    fields["grid"] = Grid(**grid)
    fields |= found("peaks", "peaks", _flag, "true or false")
    fields |= found("first_class", "first_class", lambda value: _integer(value, 0, 1000), "a whole number up to 1000")
    fields |= found("name", "name", _text, "a name")
    fields |= found("num_classes", "classes", lambda value: _integer(value, 1, MAX_CLASSES), "a number of classes")
    layout = OutputLayout(**fields)
    if layout.encoding is BoxEncoding.ANCHORS and not layout.grid.anchors:
        raise ConfigurationError(f"{where} has encoding anchors and no anchors: add anchors: FILE.")
    return layout


def check_keys(declared: Mapping[str, Any], where: str) -> None:
    """Refuses a declaration that has keys about boxes, but not ``boxes`` itself.

    The user has then forgotten ``boxes``. A declaration without any key about boxes is a classifier's.

    Args:
        declared: the declaration's values by key.
        where: says in error messages where the declaration comes from.

    Raises:
        ConfigurationError: the declaration has another key about boxes, and no ``boxes``.
    """
    others = [] if "boxes" in declared else [key for key in declared if key not in _OF_CLASSIFIERS]
    if others:
        raise ConfigurationError(
            f"{where} has {others[0]} and no boxes; add boxes with the name of their output, or leave out "
            f"{others[0]}: a classifier has the keys {', '.join(_OF_CLASSIFIERS)}."
        )


def write_declaration(layout: OutputLayout) -> dict[str, Any]:
    """Returns the mapping from which ``read_declaration`` makes this layout. The mapping can be written as JSON."""
    declared: dict[str, Any] = {"name": layout.name, "peaks": layout.peaks, "first_class": layout.first_class}
    for key, field in _PARTS.items():
        part: Part | None = getattr(layout, field)
        if part is not None:
            last = "" if part.last is None else part.last
            declared[key] = [f"{name}[{part.first}:{last}]" for name in part.outputs]
    declared |= {key: getattr(layout, field).value for key, (field, _) in _CHOICES.items()}
    grid = layout.grid
    declared |= {"strides": list(grid.strides), "offset": grid.offset, "bins": grid.bins}
    declared |= {"variances": list(grid.variances)} | ({"anchors": grid.anchors} if grid.anchors else {})
    return declared | ({} if layout.classes is None else {"num_classes": layout.classes})


def _part(value: Any, outputs: Sequence[str]) -> Part:
    """Reads ``output``, ``output[0:4]``, several of them joined by ``+``, or a list of them with one range."""
    texts = list(map(_text, value)) if isinstance(value, (list, tuple)) else [_text(value)]
    if len(texts) == 1 and texts[0] not in outputs:
        match = _SLICE.fullmatch(texts[0])
        named = match[1] if match else texts[0]
        if named not in outputs:
            texts = texts[0].split("+")
    ranges, names = set(), []
    for text in texts:
        match = None if text in outputs else _SLICE.fullmatch(text)
        names.append(match[1] if match else text)
        ranges.add((match[2], match[3]) if match else ("0", ""))
    if not names or any(name not in outputs for name in names):
        raise KeyError
    ranges.discard(("0", ""))
    if len(ranges) > 1:
        raise ValueError
    first, last = ranges.pop() if ranges else ("0", "")
    if last and int(last) <= int(first or 0):
        raise ValueError
    return Part(tuple(names), int(first or 0), int(last) if last else None)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise TypeError
    return value.strip()


def _numbers(value: Any) -> list[Any]:
    return value.split("/") if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else [value]


def _number(value: Any, least: float, most: float) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number) or not least <= number <= most:
        raise ValueError
    return number


def _integer(value: Any, least: int, most: int) -> int:
    number = _number(value, least, most)
    if number != int(number):
        raise ValueError
    return int(number)


def _strides(value: Any) -> tuple[int, ...]:
    strides = tuple(_integer(each, 1, MAX_STRIDE) for each in _numbers(value))
    if not 1 <= len(strides) <= MAX_LEVELS:
        raise ValueError
    return strides


def _variances(value: Any) -> tuple[float, float]:
    of_centre, of_size = (_number(each, 1e-6, 1e6) for each in _numbers(value))
    return of_centre, of_size


def _flag(value: Any) -> bool:
    flags = {True: True, False: False, "true": True, "false": False}
    return flags[value.lower() if isinstance(value, str) else value]
