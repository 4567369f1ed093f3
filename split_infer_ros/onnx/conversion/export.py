"""Exports a traced graph of torch to ONNX."""

from __future__ import annotations

import copy
import hashlib
import threading
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from split_infer_ros.buffers.host_arrays import is_floating, torch_dtype
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.errors import first_line
from split_infer_ros.telemetry.machine import package_version
from split_infer_ros.torch_graphs.module_state import state_of

PACKAGES = ("onnx", "onnxscript")  # torch's exporter needs them
FORMAT = 2  # raise it if the content or the way of exports changes; they are then made again
EXAMPLES = 2  # images in an example batch; with 1, the exporter would take the batch for a constant

_exporting = threading.Lock()  # torch.export changes state of the whole process


class ExportError(Exception):
    """torch cannot export a graph. The text is torch's reason."""


def export_program(part: fx.GraphModule, inputs: Sequence[TensorSpec]) -> Any:
    """Exports a traced graph for any batch size. Returns a ``torch.onnx.ONNXProgram`` that shares the graph's weights.

    Args:
        part: maps tensors of shape (n, ...) to a tuple of tensors. It is not changed.
        inputs: the specs of the tensors that the graph takes, without the batch.

    Raises:
        ExportError: torch cannot export the graph.
    """
    batch = torch.export.Dim("batch", min=1)
    own = copy.deepcopy(part, {id(tensor): tensor for tensor in state_of(part).values()})  # others may run its modules
    with _exporting, warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # about features that torch uses itself and will drop
        try:
            program = torch.onnx.export(
                own,
                example_inputs(part, inputs),
                dynamo=True,
                verbose=False,
                external_data=False,
                dynamic_shapes=tuple({0: batch} for _ in inputs),
                input_names=[f"input_{index}" for index in range(len(inputs))],
            )
            assert program is not None
            return program
        except Exception as error:  # torch's exporters raise many types of errors
            raise ExportError(first_line(error, None)) from error


def export_key(part: fx.GraphModule, inputs: Sequence[TensorSpec]) -> str:
    """Returns hexadecimal digits that identify a part's export.

    They depend on the part's operations, weights and inputs, and on the versions of the exporting packages.
    """
    content = hashlib.sha256()
    versions = [str(FORMAT), str(torch.__version__), *map(package_version, PACKAGES)]
    modules = [f"{name} {module!r}" for name, module in part.named_modules() if name]
    for text in (*versions, str(part.graph), *modules, *map(str, inputs)):
        content.update(text.encode() + b"\n")
    for name, tensor in sorted(state_of(part).items()):
        content.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        content.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return content.hexdigest()[:32]


def example_inputs(part: fx.GraphModule, inputs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
    """Returns a random batch (EXAMPLES, ...) for each input. Inputs of whole numbers, which may be indices, are zeros.

    Args:
        part: the graph that takes the inputs. Its weights' device is that of the batch.
        inputs: the specs of the inputs, without the batch.
    """
    random = torch.Generator().manual_seed(0)
    device = next((tensor.device for tensor in state_of(part).values()), torch.device("cpu"))
    examples = []
    for spec in inputs:
        shape = (EXAMPLES, *spec.shape)
        values = torch.randn(shape, generator=random) if is_floating(spec.dtype) else torch.zeros(shape)
        examples.append(values.to(device, torch_dtype(spec.dtype)))
    return tuple(examples)
