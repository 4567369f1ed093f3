"""Runs a stack on the batches of its members, so that a failure costs these batches and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.engines.compute import Backbone, Features, Images

if TYPE_CHECKING:
    from split_infer_ros.split.stacked_model import StackedModel


def run_stack(
    stack: StackedModel,
    inputs: Mapping[str, Images],
    store_features: Callable[[str, Features], object],
    run: Backbone,
) -> dict[str, Exception]:
    """Runs a stack on the batches of its members; returns the models that failed, and why.

    Args:
        stack: the stack.
        inputs: the batches of its members.
        store_features: called with each of these models and its features.
        run: runs the stack's backbone.
    """
    try:
        for model, features in stack.run({model: as_tensor(images) for model, images in inputs.items()}, run).items():
            store_features(model, features)
    except Exception as error:  # there is one network for all models, so no model has results
        return dict.fromkeys(inputs, error)
    return {}
