"""Decoding of image classifiers: each of the best classes becomes a detection that covers the model's input."""

from __future__ import annotations

import torch
from torch import Tensor

from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode


def classify(height: int, width: int, *, gives_probabilities: bool = False) -> Decode:
    """Makes the decode function of a classifier.

    Args:
        height, width: the size of its input in pixels.
        gives_probabilities: whether its outputs are probabilities. Otherwise they are logits.
    """

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Converts (N, classes) to the classes whose probability reaches the threshold, best first."""
        (values,) = outputs
        probabilities = values.flatten(1) if gives_probabilities else values.flatten(1).softmax(dim=1)
        scores, labels = probabilities.topk(min(limits.max_detections, probabilities.shape[1]), dim=1)
        is_kept = scores >= limits.score_threshold
        counts = is_kept.sum(1).tolist()
        whole = torch.tensor([0.0, 0.0, width, height])
        return [
            Detections(whole.expand(count, 4), image_scores[kept], image_labels[kept]) if count else Detections.empty()
            for image_scores, image_labels, kept, count in zip(scores, labels, is_kept, counts, strict=True)
        ]

    return decode
