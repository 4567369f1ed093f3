"""Lists a model's files and tells whether they changed, because a file may be exported anew while the program runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.onnx_models import description_files, is_onnx_file
from split_infer_ros.models.user_names import PROGRAM_SUFFIX
from split_infer_ros.runtime.user_files import user_path
from split_infer_ros.split.model_spec import ModelSpec

FilesState = tuple[tuple[int, ...], ...]
"""The size, times and inode of each file. Equal states mean that the contents did not change."""


def named_files(spec: ModelSpec) -> list[Path]:
    """Returns the files that a spec names, and the files that describe ``FILE.onnx``, even if they do not exist."""
    names = [spec.name] if is_onnx_file(spec.name) or spec.name.endswith(PROGRAM_SUFFIX) else []
    if spec.weights not in {named.value for named in NamedWeights}:
        names.append(spec.weights)
    described = description_files(spec.name, spec.onnx_options) if is_onnx_file(spec.name) else []
    return [*map(user_path, names), *described]


def files_state(files: Iterable[Path]) -> FilesState:
    """Returns the state of files. No file is read: new content has another size, time or inode."""
    return tuple(map(_state, files))


def _state(file: Path) -> tuple[int, ...]:
    try:
        facts = file.stat()
    except (OSError, ValueError):  # the file does not exist, or its name is impossible
        return ()
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns
