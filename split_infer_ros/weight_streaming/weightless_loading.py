"""Loads models that will stream their weights. If a packed file exists, memory never holds all weights at once."""

from __future__ import annotations

from functools import partial

from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_needs import require_torch
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings


def load_streamable(spec: ModelSpec, settings: WeightsSettings) -> SplitModel:
    """Loads a model. Leaves out its weights if they will be streamed and a packed file already has them.

    A partition that needs weights in memory reads them from that file. A model that is already loaded is shared, as
    ``load_model`` does it.

    Args:
        spec: says which model to load.
        settings: the weights settings of the partition that will use the model.

    Raises:
        ConfigurationError: as for ``load_model``; or weights will be streamed, and torch is not installed.
    """
    if settings.weights_residency is Residency.RESIDENT:
        return load_model(spec)
    require_torch(f"{spec.name} with streamed weights", instead=f"weights_residency {Residency.RESIDENT.value}")
    from split_infer_ros.weight_streaming.weightless_models import make_weightless  # only here: it imports torch

    return load_model(spec, partial(make_weightless, settings.weights_file))
