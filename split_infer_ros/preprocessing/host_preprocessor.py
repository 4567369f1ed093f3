"""Turns images into a model's input on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import Array, DType, as_tensor, torch_dtype
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.runtime.streams import Fence


class HostPreprocessor:
    """Pre-processes batches on the CPU.

    It resizes each image into its part of a buffer, then normalises the whole buffer.

    ``allocate`` creates a pre-processor.

    Args:
        preprocess: how the model's images are pre-processed.
        dtype: the backbone's precision.
        staging: the buffer of resized images.
        channels_last: whether the channels of the backbone's input lie side by side.
        gives_arrays: whether the backbone takes arrays. Otherwise it takes tensors.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        dtype: DType,
        staging: Array,
        channels_last: bool = True,
        gives_arrays: bool = False,
    ) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._channels_last, self._gives_arrays = channels_last, gives_arrays
        self._staging = staging
        self._lock = threading.Lock()

    @classmethod
    def allocate(
        cls,
        preprocess: Preprocess,
        *,
        batch_size: int,
        dtype: DType,
        channels_last: bool = True,
        gives_arrays: bool = False,
    ) -> HostPreprocessor:
        """Creates a pre-processor with room for ``batch_size`` images."""
        return cls(preprocess, dtype, preprocess.staging(batch_size), channels_last, gives_arrays)

    @property
    def bytes(self) -> int:
        return self._staging.nbytes

    def with_policy(self, policy: Policy) -> HostPreprocessor:
        return self

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes and normalises a batch of images of any sizes. The result is in new memory; ``into`` is not used."""
        with self._lock:
            gathered = self._preprocess.gather(images, self._staging)
            normalised = self._preprocess.normalise(gathered, channels_last=self._channels_last)
        if self._gives_arrays:
            return LoadedBatch(normalised.astype(self._dtype, copy=False), Fence())
        return LoadedBatch(as_tensor(normalised).to(torch_dtype(self._dtype)), Fence())
