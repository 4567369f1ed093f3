"""The names of an ONNX file's classes: from its metadata, or from a file of the user's."""

from __future__ import annotations

import ast
import json
from pathlib import Path

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.text import repair_text

NAMES = "names"  # the key of the metadata, as Ultralytics writes it
MAX_CHARACTERS = 2**21
MAX_LABELS = 100_000
UNREAD_SUFFIXES = (".yaml", ".yml")


def labels_of_metadata(model: str, text: str) -> tuple[str, ...]:
    """Reads the class names in a file's metadata: a dictionary or a list as Python or JSON writes it.

    Args:
        model: the model's name, for messages.
        text: the metadata's ``names``.

    Raises:
        ConfigurationError: the text holds no names.
    """
    where = f"The metadata '{NAMES}' of {model}"
    advice = "set the parameter labels to a file of names"
    if len(text) > MAX_CHARACTERS:
        raise ConfigurationError(
            f"{where} has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read, so {advice}."
        )
    try:
        return _labels(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ConfigurationError(
            f"{where} cannot be read ({reason}); a dictionary of names by number was expected, so {advice}."
        ) from error


def read_labels(path: Path) -> tuple[str, ...]:
    """Reads a file of class names: a JSON list or dictionary in ``FILE.json``, else text with one name a line.

    Raises:
        ConfigurationError: the file is missing, cannot be read, or holds no names.
    """
    if path.suffix in UNREAD_SUFFIXES:
        raise ConfigurationError(
            f"labels {path} is a YAML file, which is not read; it takes a text file with one name a line, or a JSON "
            "file with a list or a dictionary of names."
        )
    try:
        if not path.is_file():
            raise ConfigurationError(
                f"There is no file of labels {path}; labels takes the path of a text or JSON file."
            )
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"it has more than {MAX_CHARACTERS:,} characters")
        return _labels(json.loads(text) if path.suffix == ".json" else text.rstrip().splitlines())
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigurationError(
            f"labels {path} cannot be read ({error}); it takes a text file with one name a line, or a JSON file with "
            "a list or a dictionary of names."
        ) from error


def _labels(value: object) -> tuple[str, ...]:
    """Checks names by number. A number without a name is its own name.

    Raises:
        ValueError: the value is no list or dictionary of names.
    """
    if isinstance(value, (list, tuple)):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or not value:
        raise ValueError(f"it is {'empty' if isinstance(value, dict) else f'a {type(value).__name__}'}")
    labels: dict[int, str] = {}
    for key, name in value.items():
        number = int(key) if isinstance(key, str) and key.isdecimal() and len(key) < 7 else key
        if type(number) is not int or not 0 <= number < MAX_LABELS:
            raise ValueError(f"{str(key)[:40]!r} is no class number from 0 to {MAX_LABELS - 1}")
        if not isinstance(name, str):
            raise ValueError(f"the name of class {number} is a {type(name).__name__}, not text")
        labels[number] = repair_text(name).strip()
    return tuple(labels.get(number) or str(number) for number in range(max(labels) + 1))
