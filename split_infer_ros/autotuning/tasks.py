"""Describes the tasks that tuning measures, as records hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from split_infer_ros.autotuning.spaces import NETWORK, PIPELINE
from split_infer_ros.split.model import SplitModel


def network_task(model: SplitModel, batch_size: int) -> dict[str, Any]:
    """Returns the task of running the whole network on a batch, as records hold it."""
    return {
        "model": model.entry.name,
        "fingerprint": model.network.fingerprint,
        "stage": NETWORK,
        "shapes": [[batch_size, *model.entry.image_shape]],
    }


def pipeline_task(model: SplitModel, network: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the task of running the pipeline, as records hold it. ``network`` is the configuration of the network."""
    return {
        "model": model.entry.name,
        "fingerprint": model.network.fingerprint,
        "stage": PIPELINE,
        "shapes": [list(model.entry.image_shape)],
        "network": dict(network),
    }
