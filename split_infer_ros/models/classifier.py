"""Decodes classifiers in torch. Each of the best classes becomes a detection that covers the model's whole input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from split_infer_ros.buffers.host_arrays import to_host
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.entry import Decode

if TYPE_CHECKING:
    from torch import Tensor


def classify(height: int, width: int, *, gives_probabilities: bool = False) -> Decode:
    """Makes the decode function of a classifier.

    The function takes one output (N, classes). For each of N images, it gives the classes with a probability of at
    least the score threshold, the best first.

    Args:
        height, width: the size of the model's input in pixels. All boxes have this size.
        gives_probabilities: whether the output is probabilities. Otherwise it is logits.
    """

    def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        """Converts the output (N, classes) to the classes whose probability is at least the threshold, best first."""
        (values,) = outputs
        probabilities = values.flatten(1) if gives_probabilities else values.flatten(1).softmax(dim=1)
        best = probabilities.topk(min(limits.max_detections, probabilities.shape[1]), dim=1)
        pairs = zip(to_host(best.values), to_host(best.indices), strict=True)
        return [Detections.of_classes(scores, labels, (height, width), limits) for scores, labels in pairs]

    return decode
