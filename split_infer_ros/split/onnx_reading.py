"""Reads a model from an ONNX file, or from the facts that are kept about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.decoders.recognition import OutputReading
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.onnx_json import entry_of
from split_infer_ros.models.onnx_models import OnnxFile, read_onnx_file
from split_infer_ros.models.shapes_file import as_shapes, is_shapes_file
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.files import content_digest
from split_infer_ros.runtime.user_files import user_path
from split_infer_ros.split.manifest import Manifest
from split_infer_ros.split.model_spec import ModelSpec


def read_file(
    spec: ModelSpec, read_outputs: Callable[[OnnxFile], OutputReading], manifest: Manifest, digests: Mapping[Path, str]
) -> tuple[ModelEntry, OnnxGraph]:
    """Returns the entry and the graph of an ONNX file. The file is read only when the graph's nodes are needed.

    Args:
        spec: names the file.
        read_outputs: finds out how the outputs are read.
        manifest: the known facts about the file. Missing facts are found out now.
        digests: the digests of the files that hold the model. A file with other content is refused.

    Raises:
        ConfigurationError: the file cannot be read. The returned graph raises the error too when it reads the file
            later, also if a file has changed by then.
    """

    @cache
    def read() -> OnnxFile:
        if not all(_is_still(file, digest) for file, digest in digests.items()):
            raise ConfigurationError(f"{spec.name} has changed since it was loaded; load the model again.")
        return read_onnx_file(spec.name, spec.onnx_options)

    described = manifest.find("entry", lambda: read().describe(read_outputs(read())))
    graph = manifest.graph(user_path(spec.name).name, "whole", lambda: read().graph)
    entry = entry_of(described, graph)
    return as_shapes(entry) if is_shapes_file(spec.name) else entry, graph


def _is_still(file: Path, digest: str) -> bool:
    """Returns whether a file can be read and has the same content."""
    try:
        return content_digest(file) == digest
    except OSError:
        return False
