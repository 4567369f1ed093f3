"""Decoding of classifiers of torch: each of the best classes becomes a detection that covers the model's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from split_infer_ros.buffers.host_arrays import to_host
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode

if TYPE_CHECKING:
    from torch import Tensor


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
        best = probabilities.topk(min(limits.max_detections, probabilities.shape[1]), dim=1)
        found = []
        for scores, labels in zip(to_host(best.values), to_host(best.indices), strict=True):
            kept = np.flatnonzero(scores >= limits.score_threshold)
            boxes = np.tile(np.array([0, 0, width, height], np.float32), (len(kept), 1))
            found.append(Detections(boxes, scores[kept], labels[kept]))
        return found

    return decode
