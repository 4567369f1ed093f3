"""Makes other engines than torch execute a traced part of a network, by export to ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from split_infer_ros.buffers.host_arrays import torch_dtype
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.allowed_difference import allowed_difference, allowed_in_precision
from split_infer_ros.engines.engine import Engine, import_for
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.result_difference import MAX_DIFFERENCE, MAX_LOW_PRECISION_DIFFERENCE, difference
from split_infer_ros.engines.stored_export import load, path_of, store
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.conversion.export import PACKAGES, ExportError, example_inputs, export_key, export_program
from split_infer_ros.onnx.graph import OnnxGraph

MakePart = Callable[[OnnxGraph], EnginePart]


def exported_part(
    part: fx.GraphModule,
    inputs: Sequence[TensorSpec],
    make: MakePart,
    *,
    name: str,
    engine: Engine,
    version: str,
    precision: Precision,
) -> EnginePart:
    """Makes another engine execute a traced part. First compares the engine's results with torch's.

    The ONNX model is read from the user's cache if an undamaged file is there. Otherwise torch exports it to the cache.
    Files beside the model say which engines agreed with torch, in which version and precision. So each combination is
    compared only once.

    Args:
        part: maps tensors of shape (n, ...) to a tuple of tensors. It is not changed.
        inputs: the specs of the tensors that the part takes, without the batch.
        make: makes an engine's part from a graph.
        name: the network's name, for messages.
        engine: the engine that ``make`` uses.
        version: the engine's version and provider.
        precision: the precision in which parts from ``make`` compute.

    Raises:
        ConfigurationError: the part cannot be exported, or the engine cannot run it. Or the engine's results differ
            from torch's by more than rounding explains.
    """
    path = path_of(export_key(part, inputs))
    stored = load(path, name) or store(path, name, _program(part, inputs, name, engine))
    executable = make(stored.graph)
    low = "" if precision is Precision.FP32 else f"-{precision.value}"
    comparison = f"{engine.value}-{version}{low}"
    if not stored.has_passed(comparison):
        _compare(part, executable, inputs, engine, precision)
        stored.note_passed(comparison)
    return executable


def export(part: fx.GraphModule, inputs: Sequence[TensorSpec], *, name: str, engine: Engine) -> Any:
    """Exports a traced part for any batch size. Returns an ``onnx.ModelProto`` with the weights in it.

    Raises:
        ConfigurationError: torch cannot export the part, or a package for the export is not installed.
    """
    return _program(part, inputs, name, engine).model_proto


def _program(part: fx.GraphModule, inputs: Sequence[TensorSpec], name: str, engine: Engine) -> Any:
    """Returns a ``torch.onnx.ONNXProgram`` of a part for an engine.

    Raises:
        ConfigurationError: torch cannot export the part, or a package for the export is not installed.
    """
    for package in PACKAGES:
        import_for(engine, package)
    try:
        return export_program(part, inputs)
    except ExportError as error:
        raise ConfigurationError(
            f"{name} cannot run on engine {engine.value}, since torch cannot export it to ONNX ({error}): take "
            "engine torch."
        ) from error


def _compare(
    part: fx.GraphModule, executable: EnginePart, inputs: Sequence[TensorSpec], engine: Engine, precision: Precision
) -> None:
    """Compares an engine's part with torch's part on random inputs, in the dtypes of the inputs.

    Raises:
        ConfigurationError: the results differ by more than rounding explains.
    """
    examples = example_inputs(part, inputs)
    with torch.inference_mode():
        expected, found = part(*examples), executable(*examples)
    allowed = MAX_DIFFERENCE if precision is Precision.FP32 else MAX_LOW_PRECISION_DIFFERENCE
    shapes = [[tuple(tensor.shape) for tensor in tensors] for tensors in (found, expected)]
    differs = difference(found, expected) if shapes[0] == shapes[1] else float("inf")
    if allowed < differs < float("inf"):
        with torch.inference_mode():
            allowed = _allowed(part, examples, expected, precision)
    if not differs <= allowed:
        raise ConfigurationError(
            f"{executable.graph.name} cannot run on engine {engine.value}: its results differ from torch's by "
            f"{differs:.2g} of the largest, and {allowed:g} is allowed. Take engine torch."
        )


def _allowed(
    part: fx.GraphModule, examples: Sequence[Tensor], expected: Sequence[Tensor], precision: Precision
) -> float:
    """Returns the largest difference from ``expected`` that rounding explains, as a share of the largest value."""
    if precision is Precision.FP32:
        return allowed_difference(part, examples, expected)
    if any(each.dtype == torch_dtype(precision.dtype) for each in examples):
        return MAX_LOW_PRECISION_DIFFERENCE  # torch computed in the same precision
    return allowed_in_precision(part, examples, expected, torch_dtype(precision.dtype))
