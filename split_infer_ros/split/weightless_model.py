"""A model without its weights, for processes in which all weights are streamed or come from a packed file."""

from __future__ import annotations

import torch

from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.device import CPU
from split_infer_ros.split.torch_model import TorchModel


def weightless_model(entry: ModelEntry, execution_config: ExecutionConfig | None = None) -> TorchModel:
    """Builds a model on the CPU with stand-ins for all weights. Stand-ins need no memory.

    Its split points and fingerprint are those of the whole model.

    Args:
        entry: the entry of a model of torch that is built without reading weights.
        execution_config: as for ``TorchModel``.

    Raises:
        ConfigurationError: the entry builds an ONNX graph.
        UntraceableError: the model cannot be traced.
        Exception: the model computes with its weights while it is built.
    """
    with torch.device("meta"):
        module = entry.build()
    if isinstance(module, OnnxGraph):
        raise ConfigurationError(f"{entry.name} is an ONNX file, which holds its weights: it has no weightless model.")
    return TorchModel(entry, module.eval(), CPU, execution_config=execution_config)
