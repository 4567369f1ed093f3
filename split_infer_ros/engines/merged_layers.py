"""Puts merged layers into the graph of a model (paper 001, §II-B, Algorithm 1)."""

from __future__ import annotations

from torch import fx

from split_infer_ros.engines.scheduled_convolutions import replace_clamped
from split_infer_ros.vision_ops.merged_layers import MergedLayer, can_be_merged


def merge_layers(graph: fx.GraphModule) -> None:
    """Replaces convolutions and dense layers of a graph by ``MergedLayer`` (001, Algorithm 1).

    The graph is changed in place; modules are not changed. If the only user of a replaced layer is a ReLU or ReLU6, the
    activation becomes part of the new module. Results differ only by rounding.
    """
    replace_clamped(graph, "merged", can_be_merged, MergedLayer)
