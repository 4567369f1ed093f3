"""Turns images into a backbone's input on the CPU. A backbone may normalise the images itself."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import as_tensor, torch_dtype
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.loaded_batch import BatchForm, LoadedBatch
from split_infer_ros.runtime.streams import Fence


class HostPreprocessor:
    """Pre-processes batches on the CPU, for a backbone that takes normalised images.

    It resizes each image into its part of a buffer, and then normalises all images of the buffer.

    Args:
        preprocess: how the model's images are pre-processed.
        form: the form in which the backbone takes images.
        batch_size: the most images in a batch.
    """

    def __init__(self, preprocess: Preprocess, form: BatchForm, *, batch_size: int) -> None:
        self._preprocess, self._form = preprocess, form
        self._staging = preprocess.staging(batch_size)  # the resized images
        self._lock = threading.Lock()

    @property
    def bytes(self) -> int:
        return self._staging.nbytes

    def with_policy(self, policy: Policy) -> HostPreprocessor:
        return self

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes and normalises a batch of images of any sizes. The result is in new memory; ``into`` is not used."""
        with self._lock:
            gathered = self._preprocess.gather(images, self._staging)
            normalised = self._preprocess.normalise(gathered, channels_last=self._form.channels_last)
        if self._form.is_array:
            return LoadedBatch(normalised.astype(self._form.dtype, copy=False), Fence())
        return LoadedBatch(as_tensor(normalised).to(torch_dtype(self._form.dtype)), Fence())


class PixelPreprocessor:
    """Resizes images on the CPU, for a backbone that normalises images itself. Several threads may use it at once.

    Each batch gets new memory, because a backbone may still read one batch while the next batch is resized.

    Args:
        preprocess: how the model's images are pre-processed.
        batch_size: the most images in a batch.

    Attributes:
        pixels: the number format, mean and std of the images that the backbone gets.
        bytes: the bytes of one batch.
    """

    def __init__(self, preprocess: Preprocess, batch_size: int) -> None:
        self.pixels = preprocess.pixel_input
        self.bytes = batch_size * preprocess.staging(1).nbytes
        self._preprocess = preprocess

    def with_policy(self, policy: Policy) -> PixelPreprocessor:
        return self

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes n images of any sizes to (n, h, w, 3), uint8 or float32 of 0..255. ``into`` is not used."""
        gathered = self._preprocess.gather(images, self._preprocess.staging(len(images)))
        return LoadedBatch(gathered, Fence())
