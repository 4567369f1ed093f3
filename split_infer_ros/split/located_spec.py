"""Finds the ONNX file of a catalogue model, and turns the model's spec into the spec of that file."""

from __future__ import annotations

from dataclasses import asdict, replace

from split_infer_ros.engines.engine import Engine
from split_infer_ros.models.downloads import DOWNLOADS, refuse_options
from split_infer_ros.models.named_weights import NamedWeights
from split_infer_ros.models.onnx_models import is_onnx_file
from split_infer_ros.models.onnx_options import OnnxOptions
from split_infer_ros.models.shapes_file import FILE, NAME, OPTIONS
from split_infer_ros.models.user_names import is_user_model
from split_infer_ros.split.model_spec import ModelSpec


def located(spec: ModelSpec) -> ModelSpec:
    """Returns the spec with which a model is loaded. For a catalogue model with an ONNX file, it is the file's.

    The file is downloaded if need be. It is then treated like a user's file: it is inspected, and every engine runs it.
    For all other models, the name stays. In the result, ``on_torch`` is True or False, never None.

    Raises:
        ConfigurationError: the file cannot be downloaded, or the user gave an option that the catalogue decides; see
            ``Download.as_file``.
    """
    download = DOWNLOADS.get(spec.name)
    if download is not None:
        name, options = download.as_file(spec.weights, spec.onnx_options)
        return _of_file(replace(spec, on_torch=bool(spec.on_torch)), name, options)
    if spec.name == NAME and not _is_network(spec):
        refuse_options(NAME, spec.onnx_options)
        return _of_file(replace(spec, on_torch=False), str(FILE), OPTIONS)
    has_graph = is_onnx_file(spec.name) or is_user_model(spec.name)
    return replace(spec, on_torch=bool(spec.on_torch) if has_graph else True)


def _of_file(spec: ModelSpec, name: str, options: OnnxOptions) -> ModelSpec:
    return replace(spec, name=name, weights=NamedWeights.DEFAULT.value, **asdict(options))


def _is_network(spec: ModelSpec) -> bool:
    """Whether ``shapes`` is loaded as torch's network. Its ONNX file has only the default weights."""
    if spec.weights != NamedWeights.DEFAULT:
        return True
    return Engine.TORCH.is_installed if spec.on_torch is None else spec.on_torch
