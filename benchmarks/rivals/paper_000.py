"""What paper 000 says about its split inference: where it splits a model, and what it gained."""

from __future__ import annotations

from split_infer_ros.split.model import SplitModel

PAPERS_BATCH = 64
PAPERS_GAINS = {"mobilenet_v2": "1.112x", "efficientnet_b2": "1.129x", "vit_tiny": "1.212x"}  # Table 1
PAPERS_SMALL_BATCH, PAPERS_SMALL_BATCH_GAIN = 16, "1.03 to 1.04x"  # §6.4, all three models


def papers_gain(model: str, batch_size: int) -> str:
    """Returns the paper's gain over the model as built, for a model and batch size; empty if it has none."""
    if model not in PAPERS_GAINS:
        return ""
    if batch_size == PAPERS_BATCH:
        return PAPERS_GAINS[model]
    return PAPERS_SMALL_BATCH_GAIN if batch_size == PAPERS_SMALL_BATCH else ""


def papers_split_point(model: SplitModel) -> str:
    """Returns the split point between the features and the classifier (§4.4); in a detector, before its heads.

    In a classifier, this is the default split point of the catalogue. The paper has no detectors.
    """
    backbone_points = [point.name for point in model.split_points if point.name.startswith("backbone.")]
    return backbone_points[-1] if backbone_points else model.split_point("default").name
