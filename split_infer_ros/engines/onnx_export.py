"""Exports a traced part of a network to ONNX, for other engines than torch, and keeps it in the user's cache."""

from __future__ import annotations

import copy
import hashlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from split_infer_ros.buffers.host_arrays import is_floating, torch_dtype
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.allowed_difference import allowed_difference, allowed_in_precision
from split_infer_ros.engines.engine import Engine, import_for
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.module_state import state_of
from split_infer_ros.engines.precision import Precision
from split_infer_ros.engines.result_difference import (
    MAX_DIFFERENCE,
    MAX_LOW_PRECISION_DIFFERENCE,
    difference,
)
from split_infer_ros.engines.stored_export import load, path_of, store
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.telemetry.machine import package_version

FORMAT = 2  # raise it if the content or the way of exports changes; they are then made again
EXAMPLES = 2  # images in an example batch; with 1, the exporter would take the batch for a constant

MakePart = Callable[[OnnxGraph], EnginePart]

_exporting = threading.Lock()  # torch.export changes state of the whole process


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

    The ONNX model is read from the user's cache if an undamaged file is there. Files beside it say which engines agreed
    with torch on that model, in which version and precision. Each combination is therefore compared once.

    Args:
        part: maps tensors of shape (n, ...) to a tuple of tensors. It is not changed.
        inputs: the specs of the tensors that the part takes, without the batch.
        make: makes an engine's part from a graph.
        name: the network's name, for messages.
        engine: the engine that ``make`` uses.
        version: the engine's version and provider.
        precision: the precision in which parts from ``make`` compute.

    Raises:
        ConfigurationError: the part cannot be exported, the engine cannot run it, or its results differ from torch's.
    """
    path = path_of(export_key(part, inputs))
    stored = load(path, name) or store(path, name, export_program(part, inputs, name=name, engine=engine))
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
    return export_program(part, inputs, name=name, engine=engine).model_proto


def export_program(part: fx.GraphModule, inputs: Sequence[TensorSpec], *, name: str, engine: Engine) -> Any:
    """Exports a traced part for any batch size. Returns a ``torch.onnx.ONNXProgram`` that shares the part's weights.

    Raises:
        ConfigurationError: torch cannot export the part, or a package for the export is not installed.
    """
    for package in ("onnx", "onnxscript"):
        import_for(engine, package)
    batch = torch.export.Dim("batch", min=1)
    own = copy.deepcopy(part, {id(tensor): tensor for tensor in state_of(part).values()})  # others may run its modules
    with _exporting, warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # about features that torch uses itself and will drop
        try:
            program = torch.onnx.export(
                own,
                _examples(part, inputs),
                dynamo=True,
                verbose=False,
                external_data=False,
                dynamic_shapes=tuple({0: batch} for _ in inputs),
                input_names=[f"input_{index}" for index in range(len(inputs))],
            )
            assert program is not None
            return program
        except Exception as error:  # torch's exporters raise many types of errors
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            raise ConfigurationError(
                f"{name} cannot run on engine {engine.value}, since torch cannot export it to ONNX ({reason}): take "
                "engine torch."
            ) from error


def export_key(part: fx.GraphModule, inputs: Sequence[TensorSpec]) -> str:
    """Returns hexadecimal digits that identify a part's export.

    They depend on the part's operations, weights and inputs, and on the versions of the exporting packages.
    """
    content = hashlib.sha256()
    versions = [str(FORMAT), str(torch.__version__), *(package_version(package) for package in ("onnx", "onnxscript"))]
    modules = [f"{name} {module!r}" for name, module in part.named_modules() if name]
    for text in (*versions, str(part.graph), *modules, *map(str, inputs)):
        content.update(text.encode() + b"\n")
    for name, tensor in sorted(state_of(part).items()):
        content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()[:32]


def _compare(
    part: fx.GraphModule, executable: EnginePart, inputs: Sequence[TensorSpec], engine: Engine, precision: Precision
) -> None:
    """Compares an engine's part with torch's part on random inputs, in the dtypes of the inputs.

    Raises:
        ConfigurationError: the results differ.
    """
    examples = _examples(part, inputs)
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
    """Returns the largest difference that rounding explains."""
    if precision is Precision.FP32:
        return allowed_difference(part, examples, expected)
    if any(each.dtype == torch_dtype(precision.dtype) for each in examples):
        return MAX_LOW_PRECISION_DIFFERENCE  # torch computed in the same precision
    return allowed_in_precision(part, examples, expected, torch_dtype(precision.dtype))


def _examples(part: fx.GraphModule, inputs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    """Returns a batch of random inputs. Inputs of whole numbers, which may be indices, are zeros."""
    random = torch.Generator().manual_seed(0)
    device = next((tensor.device for tensor in state_of(part).values()), torch.device("cpu"))
    examples = []
    for spec in inputs:
        shape = (EXAMPLES, *spec.shape)
        values = torch.randn(shape, generator=random) if is_floating(spec.dtype) else torch.zeros(shape)
        examples.append(values.to(device, torch_dtype(spec.dtype)))
    return tuple(examples)
