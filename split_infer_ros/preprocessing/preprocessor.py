"""Pre-processors: they turn a batch of images into a model's input, on the device of its backbone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.host_arrays import DType
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.host_preprocessor import HostPreprocessor
from split_infer_ros.preprocessing.loaded_batch import LoadedBatch


class Preprocessor(Protocol):
    """Pre-processes batches for a backbone. On a CPU it may be used by several threads."""

    @property
    def bytes(self) -> int:
        """The bytes of its buffers, on both sides. What is allocated for each batch counts once."""

    def under(self, policy: Policy) -> Preprocessor:
        """Returns a pre-processor that shares all memory with this one, and gets images by another policy."""

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes a batch of images of any sizes, and normalises it unless the backbone does.

        Args:
            images: the batch.
            into: where the result is written; None for new memory.
        """


def make_preprocessor(
    preprocess: Preprocess,
    *,
    batch_size: int,
    dtype: DType,
    place: Place,
    budget_bytes: float = math.inf,
    channels_last: bool = True,
    gives_arrays: bool = False,
    pool: MemoryPool | None = None,
) -> Preprocessor:
    """Creates the pre-processor for the place where a backbone runs.

    Args:
        preprocess: how the model's images are pre-processed.
        batch_size: the most images in a batch.
        dtype: the backbone's precision.
        place: where the backbone runs, and the policy by which it gets images.
        budget_bytes: memory that the raw bytes of images may take on a GPU, on both sides.
        channels_last: whether the channels of the backbone's input lie side by side.
        gives_arrays: whether the backbone takes arrays, on a CPU. Otherwise it takes tensors.
        pool: for resized and normalised images on a GPU; None means torch's common memory.

    Raises:
        ConfigurationError: the memory cannot be allocated.
    """
    if place.device.type == "cpu":
        return HostPreprocessor.allocate(
            preprocess, batch_size=batch_size, dtype=dtype, channels_last=channels_last, gives_arrays=gives_arrays
        )
    from split_infer_ros.preprocessing.device_preprocessor import DevicePreprocessor  # only here: it imports torch

    return DevicePreprocessor.allocate(
        preprocess,
        batch_size=batch_size,
        dtype=dtype,
        place=place,
        budget_bytes=budget_bytes,
        channels_last=channels_last,
        pool=pool,
    )
