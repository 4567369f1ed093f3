"""A network without its weights, for processes in which all weights are streamed or come from a packed file."""

from __future__ import annotations

import torch

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.split.torch_network import TorchNetwork


def weightless_network(entry: ModelEntry, *, folding: bool = True) -> TorchNetwork:
    """Builds a network on the CPU with stand-ins for all weights. Stand-ins need no memory.

    Its split points and fingerprint are those of the whole network.

    Args:
        entry: the entry of a model of torch that is built without reading weights.
        folding: as for ``TorchNetwork``.

    Raises:
        ConfigurationError: the entry builds an ONNX graph.
        UntraceableError: the model cannot be traced.
        Exception: the model computes with its weights while it is built.
    """
    with torch.device("meta"):
        module = entry.build()
    if isinstance(module, OnnxGraph):
        raise ConfigurationError(f"{entry.name} is an ONNX file, which holds its weights: it has no weightless model.")
    return TorchNetwork(entry, module.eval(), folding=folding)
