"""Resizes images on the CPU for a backbone that normalises them itself."""

from __future__ import annotations

from collections.abc import Sequence

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.runtime.streams import Fence


class PixelPreprocessor:
    """Resizes images; the backbone normalises them. Several threads may use it at once.

    Each batch gets memory of its own, because a backbone may still read it while the next batch is resized.

    Args:
        preprocess: how the model's images are pre-processed.
        batch_size: the most images in a batch.

    Attributes:
        pixels: describes the images that the backbone gets.
    """

    def __init__(self, preprocess: Preprocess, batch_size: int) -> None:
        self.pixels = preprocess.pixel_input
        self._preprocess = preprocess
        self._bytes = batch_size * preprocess.staging(1).nbytes

    @property
    def bytes(self) -> int:
        """The bytes of one batch."""
        return self._bytes

    def with_policy(self, policy: Policy) -> PixelPreprocessor:
        return self

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes a batch of images of any sizes to (n, h, w, 3), uint8 or float32 of 0..255. ``into`` is not used."""
        gathered = self._preprocess.gather(images, self._preprocess.staging(len(images)))
        return LoadedBatch(gathered, Fence())
