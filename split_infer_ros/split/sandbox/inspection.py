"""Reads a user's model file in a process of its own first, because a hostile file can end the process that reads it.

A parser can crash, take all memory, or never return. The inspecting process is limited in memory and time. It does all
that this process will do with the file: it reads, checks, splits and runs the model. If that succeeds, the result is
kept in the user's cache under the file's digest, and the file is not inspected again.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from split_infer_ros import errors
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.named_weights import SAFETENSORS_SUFFIX, NamedWeights
from split_infer_ros.models.onnx_models import description_files, is_onnx_file
from split_infer_ros.models.user_names import PROGRAM_SUFFIX
from split_infer_ros.runtime.cache import cache_folder, digits_of, warn_if_not_kept
from split_infer_ros.runtime.cached_json import read_json, write_json
from split_infer_ros.runtime.files import content_digest
from split_infer_ros.runtime.shortage import host_bytes_free, shortage
from split_infer_ros.runtime.user_files import is_regular, user_path
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.sandbox.early_inspector import file_digits
from split_infer_ros.split.sandbox.inspection_limits import MEMORY_VARIABLE, TIME_VARIABLE, InspectionLimits
from split_infer_ros.split.sandbox.inspector_process import Inspector
from split_infer_ros.telemetry.machine import engine_version, package_version

FORMAT = 4  # of the inspection; a change of what it does raises it, and files are then inspected again
MAX_DESCRIPTION_BYTES = 2**26  # of a file of labels or anchors; one that is larger is not read
_PACKAGES = ("split_infer_ros", "torch", "onnx")
_ENGINES = ("onnxruntime", "openvino")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inspected:
    """What an inspection found.

    Attributes:
        digests: the digests of the files that hold the model: the first inspected file, and the files of weights beside
            it.
        reading: how the outputs of an ONNX file are read, as ``parse_reading`` takes it; empty for another model.
        identity: identifies the contents of all files, what the user says about them, and the versions of the packages
            that read them. Empty if nothing was inspected.
    """

    digests: Mapping[Path, str] = field(default_factory=dict)
    reading: Mapping[str, Any] = field(default_factory=dict)
    identity: str = ""


def inspect_files(spec: ModelSpec, inspector: Inspector | None = None) -> Inspected:
    """Inspects the files of a spec that can do harm, unless that was done before; see ``inspected_paths``.

    Args:
        spec: names the model. Its execution config names the engine; everything runs on the CPU.
        inspector: the process to use, which stays open; None starts a process for this call alone.

    Returns:
        What this or an earlier inspection found. It is empty if there are no files that can do harm.

    Raises:
        ConfigurationError: a file cannot be used. The sentence says why.
    """
    paths = inspected_paths(spec)
    if not paths:
        return Inspected()
    nbytes = sum(path.stat().st_size for path in paths)
    if nbytes > (free := host_bytes_free()):
        raise ConfigurationError(f"{paths[-1]} cannot be read: {shortage(nbytes, free, 'the host')}.")
    known = _known_path(spec, paths)
    folder = paths[0].absolute().parent
    if (found := _read_known(known, paths[0])) is not None:
        return found
    limits, begin = InspectionLimits.of(nbytes), time.monotonic()
    if inspector is None:
        with Inspector() as own:
            answer = own.ask(spec, limits)
    else:
        answer = inspector.ask(spec, limits)
    _raise_objection(answer, paths[-1], limits)
    if not all(map(is_regular, paths)) or _known_path(spec, paths) != known:
        raise ConfigurationError(f"{paths[-1]} has changed while it was inspected; load the model again.")
    _log.info("%s was inspected in %.1f s, once for this file.", paths[-1], time.monotonic() - begin)
    beside = [Path(file) for file in answer["files"]]
    digests = {os.path.relpath(file, folder): content_digest(file) for file in beside}
    with warn_if_not_kept(known, f"{paths[-1]} is inspected at each start"):
        write_json(known, {"beside": digests, "reading": answer["reading"]})
    return _inspected(known, paths[0], digests, answer["reading"])


def inspected_paths(spec: ModelSpec) -> list[Path]:
    """Returns those of a spec's files that can end the process that reads them.

    A file that does not exist is left out, because the loading of the model reports it. Safetensors are left out: their
    reader checks all sizes, and they hold nothing but numbers.
    """
    names = []
    if is_onnx_file(spec.name) or (spec.name.endswith(PROGRAM_SUFFIX) and spec.allow_user_code):
        names.append(spec.name)
    is_file = spec.weights not in {named.value for named in NamedWeights}
    if is_file and not is_onnx_file(spec.name) and not spec.weights.endswith(SAFETENSORS_SUFFIX):
        names.append(spec.weights)
    return [path for path in map(user_path, names) if is_regular(path)]


def _raise_objection(answer: dict[str, Any], path: Path, limits: InspectionLimits) -> None:
    allowed = f"{limits.memory_bytes / 1e6:,.0f} MB"
    if "late" in answer:
        raise ConfigurationError(
            f"{path} was not read within {limits.seconds:.3g} s by the process that inspects it: it is damaged, means "
            f"harm, or needs longer, which the environment variable {TIME_VARIABLE} can allow."
        )
    if "died" in answer:
        raise ConfigurationError(
            f"{path} ended the process that inspects it ({answer['died']}): it is damaged, means harm, or needs more "
            f"than {allowed} of memory, which the environment variable {MEMORY_VARIABLE} can allow."
        )
    if "error" in answer:
        sentence = str(answer["error"])
        if answer["is_shortage"]:
            sentence += f" Inspecting it may take {allowed}; the environment variable {MEMORY_VARIABLE} can allow more."
        raise getattr(errors, str(answer["kind"]))(sentence)


def _known_path(spec: ModelSpec, paths: list[Path]) -> Path:
    """Returns the cache file for the result of an inspection. Its name depends on the files' contents."""
    return cache_folder() / "inspected" / f"{file_digits(paths[0])}.{_key(spec, paths)}.json"


def _key(spec: ModelSpec, paths: list[Path]) -> str:
    """Returns hexadecimal digits that stand for the files' contents, and for all that decides how they are read."""
    names = [name for name in (spec.name, spec.weights) if user_path(name) not in paths]
    facts = [
        FORMAT,
        names,
        spec.allow_user_code,
        spec.on_torch,
        asdict(spec.onnx_options),
        spec.execution_config.engine.value,
    ]
    facts += [*map(package_version, _PACKAGES), *map(engine_version, _ENGINES)]
    facts += [content_digest(path) for path in paths]
    facts += [content_digest(path) for path in _descriptions(spec)]
    return digits_of(json.dumps(facts))


def _descriptions(spec: ModelSpec) -> list[Path]:
    """Returns the files that say how a model's outputs are read, and what its classes are called."""
    if not is_onnx_file(spec.name):
        return []
    paths = filter(is_regular, description_files(spec.name, spec.onnx_options))
    return [path for path in paths if path.stat().st_size <= MAX_DESCRIPTION_BYTES]  # a larger file is refused


def _read_known(known: Path, model: Path) -> Inspected | None:
    """Returns what an earlier inspection found; None if there was none, or a file beside the model has changed."""
    try:
        found = read_json(known)
        folder = model.absolute().parent
        is_same = all(content_digest(folder / name) == digest for name, digest in found["beside"].items())
        return _inspected(known, model, found["beside"], dict(found["reading"])) if is_same else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _inspected(known: Path, model: Path, beside: Mapping[str, str], reading: Mapping[str, Any]) -> Inspected:
    """Makes the result of an inspection from what its cache file holds.

    Files beside the model are named relative to its folder.
    """
    digests = {model.absolute().parent / name: digest for name, digest in beside.items()}
    identity = " ".join([known.stem, *digests.values()])
    return Inspected({model: content_digest(model), **digests}, reading, identity)
