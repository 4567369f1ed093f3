"""Turns images into a model's input on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.runtime.streams import Fence


class HostPreprocessor:
    """Pre-processes on the CPU. Each image is resized into its part of a buffer, which is normalised as a whole.

    ``allocate`` creates one.

    Args:
        preprocess: how the model's images are pre-processed.
        dtype: the backbone's precision.
        staging: the buffer of resized images.
        memory_format: the layout of the backbone's input.
    """

    def __init__(
        self,
        preprocess: Preprocess,
        dtype: torch.dtype,
        staging: NDArray[Any],
        memory_format: torch.memory_format = torch.channels_last,
    ) -> None:
        self._preprocess = preprocess
        self._dtype = dtype
        self._channels_last = memory_format is torch.channels_last
        self._staging = staging
        self._lock = threading.Lock()

    @classmethod
    def allocate(
        cls,
        preprocess: Preprocess,
        *,
        batch_size: int,
        dtype: torch.dtype,
        memory_format: torch.memory_format = torch.channels_last,
    ) -> HostPreprocessor:
        """Creates a pre-processor with room for ``batch_size`` images."""
        return cls(preprocess, dtype, preprocess.staging(batch_size), memory_format)

    @property
    def bytes(self) -> int:
        return self._staging.nbytes

    def under(self, policy: Policy) -> HostPreprocessor:
        return self

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes and normalises a batch of images of any sizes, into new memory. ``into`` is not used."""
        with self._lock:
            gathered = self._preprocess.gather(images, self._staging)
            normalised = self._preprocess.normalise(gathered, channels_last=self._channels_last)
        return LoadedBatch(torch.from_numpy(normalised).to(self._dtype), Fence())
