"""Loads models whose weights will be streamed. With a packed file at hand, they are never in memory as a whole."""

from __future__ import annotations

from functools import partial

from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.split.torch_needs import require_torch
from split_infer_ros.weight_streaming.residency import Residency
from split_infer_ros.weight_streaming.settings import WeightsSettings


def load_streamable(spec: ModelSpec, settings: WeightsSettings) -> SplitModel:
    """Loads a model, without its weights if they will be streamed and a file of them was packed before.

    A partition that needs weights in memory reads them from that file. Models that were loaded before are shared, as
    by ``load_model``.

    Args:
        spec: of the model.
        settings: of the partition for which it is loaded.

    Raises:
        ConfigurationError: as for ``load_model``; or weights will be streamed, and torch is not installed.
    """
    if settings.weights_residency is Residency.RESIDENT:
        return load_model(spec)
    require_torch(f"{spec.name} with streamed weights", instead=f"weights_residency {Residency.RESIDENT.value}")
    from split_infer_ros.weight_streaming.hollow_models import make_hollow  # only here: it imports torch

    return load_model(spec, partial(make_hollow, settings.weights_file))
