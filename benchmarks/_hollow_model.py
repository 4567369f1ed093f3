"""A model without its weights, for runs in which all weights are streamed."""

from __future__ import annotations

import torch

from split_infer_ros.models.catalogue import find_model
from split_infer_ros.split.torch_model import TorchModel


def hollow_model(name: str) -> TorchModel:
    """Builds a model of the catalogue without weights. It has split points, and runs on weights that are streamed.

    Raises:
        ConfigurationError: the catalogue has no such model.
    """
    entry = find_model(name)
    with torch.device("meta"):
        module = entry.build().eval()
    return TorchModel(entry, module, torch.device("cpu"))
