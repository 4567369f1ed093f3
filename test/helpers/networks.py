"""Returns the network or the graph of a torch model."""

from __future__ import annotations

from torch import fx

from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.torch_network import TorchNetwork


def network_of(model: SplitModel) -> TorchNetwork:
    """Returns the network of a torch model."""
    assert isinstance(model.network, TorchNetwork)
    return model.network


def graph_of(model: SplitModel) -> fx.GraphModule:
    """Returns the whole graph of a torch model, with stand-ins for weights that were released from memory."""
    return network_of(model).graph.module
