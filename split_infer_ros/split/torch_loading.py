"""Builds models that need torch, and makes networks of them."""

from __future__ import annotations

import torch
from torch import nn

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.models.entry import ModelEntry
from split_infer_ros.models.user import check_detections
from split_infer_ros.models.user_names import is_user_model
from split_infer_ros.models.weights import load_weights
from split_infer_ros.onnx.graph import OnnxGraph
from split_infer_ros.runtime.num_threads import tell_torch
from split_infer_ros.split.export import UntraceableError
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.onnx_network import OnnxNetwork
from split_infer_ros.split.sized_network import SizedNetwork
from split_infer_ros.split.split_points import INPUT
from split_infer_ros.split.torch_network import TorchNetwork

SEED = 0  # untrained weights are the same ones each time


def build_with_torch(spec: ModelSpec) -> tuple[ModelEntry, nn.Module | OnnxGraph]:
    """Builds a module on the CPU, with its weights, in eval mode; or the ONNX graph that a user's function names.

    Args:
        spec: names any model but an ONNX file.

    Returns:
        The model's ``ModelEntry``, and the module or graph.

    Raises:
        ConfigurationError: the model is unknown, the weights do not fit, or a user's model cannot be decoded.
    """
    tell_torch()  # this thread may be the first to use torch
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        entry = find_model(spec.name, allow_user_code=spec.allow_user_code, onnx_options=spec.onnx_options)
        built = entry.build()
    if not isinstance(built, OnnxGraph):
        load_weights(built.eval(), entry, spec.weights)
    if is_user_model(spec.name):
        check_detections(
            entry, SplitModel(OnnxNetwork(entry, built)).head(INPUT) if isinstance(built, OnnxGraph) else built
        )
    return entry, built


def make_torch_network(entry: ModelEntry, module: nn.Module, *, folding: bool) -> TorchNetwork | SizedNetwork:
    """Makes a network of a module. The module is traced once for any batch size; if that fails, for each size.

    Args:
        entry: the model's ``ModelEntry``.
        module: the module with its weights. The network changes it, so nothing else may use it.
        folding: whether batch norms are folded into convolutions.

    Raises:
        UntraceableError: the module cannot be traced, not even for single batch sizes.
    """
    try:
        return TorchNetwork(entry, module, folding=folding)
    except UntraceableError as error:
        try:
            return SizedNetwork(entry, module, folding=folding)
        except UntraceableError:
            raise error from None
