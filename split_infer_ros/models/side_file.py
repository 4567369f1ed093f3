"""What a user writes beside a model: ``FILE.yaml`` for ``FILE.onnx``. It is data, and reading it runs no code."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.onnx_labels import named_classes
from split_infer_ros.models.onnx_options import AUTO, OnnxOptions
from split_infer_ros.models.plain_yaml import MAX_YAML_CHARACTERS, SUFFIXES, read_plain_yaml
from split_infer_ros.models.user_text import read_text
from split_infer_ros.runtime.user_files import is_regular

MARK = "decoder"  # a mapping without this key is another program's, such as the description of a network
KEYS = (MARK, "labels", "preprocessing", "input_size")


@dataclass(frozen=True, slots=True)
class SideFile:
    """The contents of ``FILE.yaml``.

    Attributes:
        path: of the file; None if there is none that is meant for this package.
        decoder: a name, or the keys and values of a declaration; empty if it does not say.
        labels: the path of a file of names, or the names; empty if it does not say.
        preprocessing, input_size: as the parameters of these names; empty if it does not say.
    """

    path: Path | None = None
    decoder: str | dict[str, Any] = ""
    labels: str | tuple[str, ...] = ""
    preprocessing: str = ""
    input_size: str = ""


def side_path(model: Path) -> Path | None:
    """Returns the path of the file beside a model, or None if there is none."""
    paths = (model.with_suffix(suffix) for suffix in SUFFIXES)
    return next((path for path in paths if is_regular(path)), None)


def read_side_file(model: Path) -> SideFile:
    """Reads what a user says about a model in the file beside it. One without the key ``decoder`` is left alone.

    Raises:
        ConfigurationError: the file is too large, no YAML, or has a key or value that means nothing here.
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
    return SideFile(path, decoder, labels, **texts)


_parse = functools.lru_cache(maxsize=8)(read_plain_yaml)  # a long text takes seconds, and a load reads it several times


def _load(path: Path) -> Any:
    try:
        return _parse(read_text(path, MAX_YAML_CHARACTERS))
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{path} cannot be read ({error}); beside a model, it says how the model's outputs are read "
            "(docs/guides/own_model.md). Mend it, or give it another name."
        ) from error
