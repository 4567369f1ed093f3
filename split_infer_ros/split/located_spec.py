"""Turns a spec that names a downloaded model into the spec of its file."""

from __future__ import annotations

from dataclasses import asdict, replace

from split_infer_ros.models.downloads import DOWNLOADS
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.split.model_spec import ModelSpec


def located(spec: ModelSpec) -> ModelSpec:
    """Returns the spec by which a model is loaded: of its ONNX file if the catalogue downloads one, else as given.

    From there on, such a model is like a user's ONNX file: it is inspected, and every engine runs it.

    Raises:
        ConfigurationError: the file cannot be downloaded; see ``Download.as_file``.
    """
    download = DOWNLOADS.get(spec.name)
    if download is None:
        return spec
    name, options = download.as_file(spec.weights, spec.onnx_options)
    return replace(spec, name=name, weights=NamedWeights.DEFAULT.value, **asdict(options))
