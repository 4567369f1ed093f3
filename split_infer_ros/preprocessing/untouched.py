"""Frames that reach a task as they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import Array, Floats
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.runtime.streams import Fence


class Untouched(Preprocess):
    """The pre-processing of a task: none. Its boxes are those of the source already, and end with an image."""

    def __init__(self) -> None:
        super().__init__(height=0, width=0)

    def to_source(self, boxes: Floats, height: int, width: int) -> Floats:
        """Returns the boxes of an image, (n, 4), as far as they lie in it, and those of a point cloud as they are."""
        if boxes.shape[1] != 4:
            return boxes
        return np.clip(boxes, 0, np.array((width, height) * 2, boxes.dtype))


class UntouchedPreprocessor:
    """Gives a task the payloads of frames. Several threads may use it at once.

    Attributes:
        bytes: 0, because nothing is copied.
    """

    bytes = 0

    def with_policy(self, policy: Policy) -> UntouchedPreprocessor:
        return self

    def load(self, images: Sequence[Any], into: GraphInput | None = None) -> LoadedBatch:
        """Returns the payloads of n frames as a batch (n,). ``into`` is not used."""
        return LoadedBatch(batch_of(images), Fence())


def batch_of(payloads: Sequence[Any]) -> Array:
    """Returns payloads of any kind as a batch, an array (n,) of objects. A batch of images has an array, too."""
    batch = np.empty(len(payloads), object)
    for index, payload in enumerate(payloads):
        batch[index] = payload
    return batch
