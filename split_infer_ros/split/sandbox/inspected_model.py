"""Inspects a model's files: does all that a node will do with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from split_infer_ros import errors
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError, SplitInferError, first_line
from split_infer_ros.models.decoders.recognition import OutputReading
from split_infer_ros.models.detections import Limits
from split_infer_ros.models.entry import ModelEntry, outputs_of
from split_infer_ros.models.onnx_json import write_reading
from split_infer_ros.models.onnx_models import OnnxFile, is_onnx_file
from split_infer_ros.models.user_names import is_user_model
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.device import CPU
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.shortage import says_shortage
from split_infer_ros.runtime.user_files import user_path
from split_infer_ros.split.load import build_uninspected, make_network
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.output_trial import read_outputs
from split_infer_ros.split.split_points import as_specified

IMAGES = 2  # in a batch


def parse_spec(fields: dict[str, Any]) -> ModelSpec:
    """Returns the spec of a request from ``Inspector.ask``, with the CPU as its device."""
    engine = Engine(fields["engine"])
    rest = {name: value for name, value in fields.items() if name != "engine"}
    return ModelSpec(**rest, device="cpu", execution_config=ExecutionConfig(engine=engine))


def files_beside(spec: ModelSpec) -> dict[Path, int]:
    """Returns the files of weights beside a model, and how many bytes the model takes from each.

    Raises:
        ConfigurationError: the model cannot be read, or weights are not where the model says.
    """
    if not is_onnx_file(spec.name):
        return {}
    from split_infer_ros.onnx.file import weights_beside  # here, because onnx is optional

    return weights_beside(user_path(spec.name))


def inspect_model(spec: ModelSpec) -> dict[str, Any]:
    """Loads, splits and runs a model.

    Returns:
        How the outputs of an ONNX file are read, as ``parse_reading`` takes it; empty for another model.

    Raises:
        ConfigurationError: a node could not run the model.
    """
    found: dict[str, Any] = {}

    def read(file: OnnxFile) -> OutputReading:
        reading = read_outputs(file)
        found.update(write_reading(reading))
        return reading

    entry, built = build_uninspected(spec, read)
    if is_onnx_file(spec.name) or is_user_model(spec.name):
        config = spec.execution_config if isinstance(built, OnnxGraph) else ExecutionConfig()
        _run(entry, SplitModel(make_network(entry, built), CPU, config))
    return found


def describe_objection(spec: ModelSpec, error: Exception) -> dict[str, Any]:
    """Returns an error in a form that can be sent as JSON.

    Returns:
        ``error``, a sentence; ``kind``, the name of the error that a node should raise; ``is_shortage``, whether
        memory ran out.
    """
    kind, sentence = type(error).__name__, str(error)
    if not isinstance(error, SplitInferError):  # damage for which no code has a sentence
        file = spec.name if is_onnx_file(spec.name) or is_user_model(spec.name) else spec.weights
        sentence = f"{file} cannot be used ({kind}: {first_line(error)})."
    if not isinstance(error, ConfigurationError) or not hasattr(errors, kind):
        kind = ConfigurationError.__name__
    return {"error": sentence, "kind": kind, "is_shortage": says_shortage(sentence)}


def _run(entry: ModelEntry, model: SplitModel) -> None:
    """Runs both partitions and the decoder on black images."""
    split_point = model.split_point("default")
    with inference_mode():
        features = model.backbone(split_point.name)(model.blank_images(IMAGES))
        outputs = model.head(split_point.name)(*as_specified(features, split_point.head_inputs))
        entry.detections_of(outputs_of(outputs), Limits(score_threshold=0.0))  # every box is read
