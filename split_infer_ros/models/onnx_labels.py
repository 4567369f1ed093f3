"""The names of an ONNX file's classes: from its metadata, or from a file of the user's."""

from __future__ import annotations

import ast
import json
import logging
from pathlib import Path
from typing import Any

from split_infer_ros.errors import ConfigurationError, first_line
from split_infer_ros.models import plain_yaml
from split_infer_ros.models.user_text import read_text, split_lines, trimmed, warn_once
from split_infer_ros.runtime.text import repair_text

NAMES = "names"  # the key of the metadata, as Ultralytics writes it
MAX_CHARACTERS = 2**21
MAX_LABELS = 100_000

_HOLDERS = (NAMES, "id2label", "label2id", "labels", "classes")  # keys under which other programs' files keep the names
_UNREADABLE = (ValueError, SyntaxError, TypeError, RecursionError, MemoryError)
_TAKES = (
    "it takes a text file in UTF-8 with one name a line, or a JSON or YAML file with a list of names or a dictionary "
    "of names by number."
)

_log = logging.getLogger(__name__)


def labels_of_metadata(model: str, text: str) -> tuple[str, ...]:
    """Reads the class names in a file's metadata: a dictionary or a list as JSON or Python writes it.

    Unreadable metadata does not stop a model: its classes are then named by their numbers, and the log says so once.

    Args:
        model: the model's name, for messages.
        text: the value of the metadata's key ``names``.

    Returns:
        The names in the order of the classes' numbers; empty if there are none.

    Raises:
        ConfigurationError: the text has more than ``MAX_CHARACTERS`` characters.
    """
    where = f"The metadata '{NAMES}' of {model}"
    advice = "set the parameter labels to a file of names"
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(
            f"{where} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read, so {advice}."
        )
    if not text.strip():
        return ()
    try:
        return named_classes(_literal(text))
    except _UNREADABLE as error:
        reason = first_line(error).partition(": <")[0]
        warn_once(_log, f"{where} cannot be read ({reason}), so its classes are numbers; for their names, {advice}.")
        return ()


def read_labels(path: Path) -> tuple[str, ...]:
    """Reads a file of class names: JSON in ``FILE.json``, YAML in ``FILE.yaml``, else text with one name a line.

    Returns:
        The names in the order of the classes' numbers.

    Raises:
        ConfigurationError: the file is missing, cannot be read, or holds no names.
    """
    suffix = path.suffix.lower()
    try:
        text = read_text(path, MAX_CHARACTERS)
        value: Any
        if suffix == ".json":
            value = json.loads(text)
        elif suffix in plain_yaml.SUFFIXES:
            value = plain_yaml.read_plain_yaml(text)
        else:
            value = split_lines(text)
        labels = named_classes(value)
        if not labels:
            raise ValueError("it is empty")
    except FileNotFoundError:
        raise ConfigurationError(
            f"There is no file of labels {path}; labels takes the path of a text, JSON or YAML file."
        ) from None
    except (OSError, *_UNREADABLE) as error:
        raise ConfigurationError(f"labels {path} cannot be read ({error}); {_TAKES}") from error
    return labels


def _literal(text: str) -> Any:
    """Reads a text as JSON, or else as a literal of Python. No code is run."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ast.literal_eval(text.strip())


def named_classes(value: Any) -> tuple[str, ...]:
    """Returns the names of classes in the order of their numbers. A class without a name is named by its number.

    Args:
        value: a list of names, or a dictionary of names by number or of numbers by name. A dictionary may also hold one
            of these under a key such as ``names`` or ``id2label``.

    Raises:
        ValueError: the value has none of these forms.
    """
    if isinstance(value, dict):
        held = [value[key] for key in _HOLDERS if isinstance(value.get(key), (list, tuple, dict))]
        value = held[0] if held else value
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    numbers = {key: _number(key) for key in value}
    if None in numbers.values() and all(_number(item) is not None for item in value.values()):
        by_number = {_number(number): name for name, number in value.items()}
        if len(by_number) < len(value):
            raise ValueError("two names have the same number")
        value, numbers = by_number, {number: number for number in by_number}
    labels: dict[int, str] = {}
    for key, name in value.items():
        number = numbers[key]
        if number is None or not 0 <= number < MAX_LABELS:
            raise ValueError(f"{str(key)[:40]!r} is no class number from 0 to {MAX_LABELS - 1}")
        labels[number] = _name(number, name)
    return tuple(labels.get(number) or str(number) for number in range(max(labels, default=-1) + 1))


def _number(key: Any) -> int | None:
    """Returns a key as a class number: a whole number, or text of digits. Other keys, such as ``True``, give None."""
    if isinstance(key, str):
        return int(key) if key.isdecimal() and len(key) < 7 else None
    if type(key) is float and key.is_integer():
        return int(key)
    return key if type(key) is int else None


def _name(number: int, name: Any) -> str:
    """Returns the name of a class as text; empty if the class has no name.

    Raises:
        ValueError: the name is neither text nor a number.
    """
    if name is None:
        return ""
    if not isinstance(name, (str, int, float)):  # bool is an int
        raise ValueError(f"the name of class {number} is a {type(name).__name__}, not text")
    return trimmed(repair_text(str(name)))
