"""The side file of a model: ``FILE.yaml``, which a user writes beside ``FILE.onnx``. Reading it runs no code."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.declaration import is_declaration, parse_text
from split_infer_ros.models.onnx_labels import named_classes
from split_infer_ros.models.onnx_options import AUTO, OnnxOptions
from split_infer_ros.models.plain_yaml import MAX_YAML_CHARACTERS, SUFFIXES, read_plain_yaml
from split_infer_ros.models.user_text import read_text, warn_once
from split_infer_ros.runtime.beside import folders_of, lies_in
from split_infer_ros.runtime.user_files import is_regular, open_regular, user_path

MARK = "decoder"  # a mapping without this key belongs to another program; it may describe a network
KEYS = (MARK, "labels", "preprocessing", "input_size")
MAX_SEARCHED_BYTES = 2**22  # how much of a file that cannot be read is searched for the key

_MARKED = re.compile(rb"^(\xef\xbb\xbf|\xff\xfe|\xfe\xff)?(\{[ \t]*)?(['\"]?)decoder\3[ \t]*:", re.MULTILINE)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SideFile:
    """The contents of a model's side file: ``FILE.yaml`` beside ``FILE.onnx``.

    A model without a side file has ``SideFile()``. So has a model with a YAML file of another program.

    Attributes:
        path: the path of the side file; None if there is none.
        decoder: the name of a decoder, or a declaration as a mapping of its keys to values; empty without a side file.
        labels: the class names, or the path of a file with them in the model's folder; empty if the user gives neither.
        preprocessing, input_size: values for the parameters ``preprocessing`` and ``input_size``; empty if the user
            gives none.
    """

    path: Path | None = None
    decoder: str | dict[str, Any] = ""
    labels: str | tuple[str, ...] = ""
    preprocessing: str = ""
    input_size: str = ""


def side_path(model: Path) -> Path | None:
    """Returns the path of the YAML file beside a model; None if there is none. Another program may have written it."""
    paths = (model.with_suffix(suffix) for suffix in SUFFIXES)
    return next((path for path in paths if is_regular(path)), None)


def read_side_file(model: Path) -> SideFile:
    """Reads the side file of a model. A YAML file without the key ``decoder`` is another program's, and is ignored.

    Raises:
        ConfigurationError: the side file cannot be read, has an unknown key or an unusable value, or names a file
            outside of the model's folder.
    """
    path = side_path(model)
    if path is None:
        return SideFile()
    contents = _load(path)
    if not isinstance(contents, dict) or MARK not in contents:
        return SideFile()
    unknown = [key for key in contents if key not in KEYS]
    if unknown:
        raise ConfigurationError(f"{path} has the key '{str(unknown[0])[:60]}'; keys are: {', '.join(KEYS)}.")
    decoder = contents[MARK]
    if not decoder or not isinstance(decoder, (str, dict)) or not all(isinstance(key, str) for key in decoder):
        raise ConfigurationError(
            f"{path} has decoder '{str(decoder)[:60]}'; it takes the name of a decoder, or keys and values that say "
            "how the outputs are read."
        )
    labels = contents.get("labels", "")
    if isinstance(labels, list):
        try:
            labels = named_classes(labels)
        except ValueError as error:
            raise ConfigurationError(f"{path} has labels that cannot be read: {error}.") from error
    texts = {key: contents.get(key, "") for key in KEYS[2:]}
    for key, value in {"labels": labels, **texts}.items():
        if not isinstance(value, str) and not (key == "labels" and isinstance(value, tuple)):
            raise ConfigurationError(f"{path} has {key} '{str(value)[:60]}'; it takes text, like the parameter {key}.")
    try:
        OnnxOptions(
            decoder=decoder if isinstance(decoder, str) else AUTO,
            input_size=texts["input_size"],
            preprocessing=texts["preprocessing"] or AUTO,
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{path} cannot be used: {error}") from error
    _check_files(path, model, {"labels": labels if isinstance(labels, str) else "", "anchors": anchors_in(decoder)})
    return SideFile(path, decoder, labels, **texts)


def anchors_in(decoder: str | Mapping[str, Any]) -> str:
    """Returns the name of the file of anchors in a declaration; empty for another decoder, or without such a file."""
    if isinstance(decoder, str):
        decoder = parse_text(decoder) if is_declaration(decoder) else {}
    anchors = decoder.get("anchors")
    return anchors.strip() if isinstance(anchors, str) else ""


def _check_files(path: Path, model: Path, names: Mapping[str, str]) -> None:
    """Refuses files outside of the model's folder.

    A downloaded description must not decide which of the user's files are read.

    Args:
        path: the path of the side file, for the error.
        model: the path of the model.
        names: the names of the files by the side file's key. An empty name means no file.
    """
    folders = folders_of(model)
    for key, name in names.items():
        if name and not lies_in(model.parent / user_path(name), folders):
            raise ConfigurationError(
                f"{path} has {key} '{name[:60]}', which is not in its folder {folders[0]}; move that file there, or "
                f"name it by the parameter {'labels' if key == 'labels' else MARK}."
            )


_parse = functools.lru_cache(maxsize=8)(read_plain_yaml)  # a long text takes seconds, and a load reads it several times


def _load(path: Path) -> Any:
    """Returns the contents of a YAML file; None if it cannot be read and belongs to another program."""
    try:
        return _parse(read_text(path, MAX_YAML_CHARACTERS))
    except (OSError, ValueError) as error:
        if isinstance(error, ValueError) and not _has_mark(path):
            warn_once(_log, f"{path} is left alone: it cannot be read ({error}), and no line begins with 'decoder:'.")
            return None
        raise ConfigurationError(
            f"{path} cannot be read ({error}); beside a model, it says how the model's outputs are read "
            "(docs/guides/own_model.md). Mend it, or give it another name."
        ) from error


def _has_mark(path: Path) -> bool:
    """Whether a line in the first ``MAX_SEARCHED_BYTES`` of a file begins with the key ``decoder``."""
    with open(path, "rb", opener=open_regular) as file:
        data = file.read(MAX_SEARCHED_BYTES)
    return _MARKED.search(data.replace(b"\0", b"")) is not None  # UTF-16 and UTF-32 have zero bytes between letters
