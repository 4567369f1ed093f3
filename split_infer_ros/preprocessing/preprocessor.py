"""Pre-processors turn a batch of images into a model's input, on the device of the backbone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from split_infer_ros.buffers.graph_input import GraphInput
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.preprocessing.host_preprocessor import HostPreprocessor
from split_infer_ros.preprocessing.loaded_batch import BatchForm, LoadedBatch
from split_infer_ros.preprocessing.untouched import Untouched, UntouchedPreprocessor


class Preprocessor(Protocol):
    """Pre-processes batches for a backbone. On a CPU, several threads may use it at once."""

    @property
    def bytes(self) -> int:
        """The bytes of the buffers, on host and GPU together. If each batch gets new memory, that of one batch."""

    def with_policy(self, policy: Policy) -> Preprocessor:
        """Returns a pre-processor that shares all memory with this one, and uses another memory policy for images."""

    def load(self, images: Sequence[Pixels], into: GraphInput | None = None) -> LoadedBatch:
        """Resizes a batch of images of any sizes, and normalises it unless the backbone normalises images itself.

        Args:
            images: the images of the batch.
            into: the memory from which a recorded graph reads its images. It gets the result. None for new memory.
        """


def make_preprocessor(
    preprocess: Preprocess,
    form: BatchForm,
    *,
    batch_size: int,
    place: Place,
    budget_bytes: float = math.inf,
    pool: MemoryPool | None = None,
) -> Preprocessor:
    """Creates the pre-processor for a backbone that takes normalised images. It works on the backbone's device.

    Args:
        preprocess: how the model's images are pre-processed.
        form: the form in which the backbone takes images.
        batch_size: the most images in a batch.
        place: where the backbone runs, and the memory policy by which it gets images.
        budget_bytes: memory that raw bytes of images for a GPU may take, on host and GPU together.
        pool: the memory for resized and normalised images on a GPU. None means torch's common memory.

    Raises:
        ConfigurationError: the memory cannot be allocated.
    """
    if isinstance(preprocess, Untouched):
        return UntouchedPreprocessor()
    if place.device.type == "cpu":
        return HostPreprocessor(preprocess, form, batch_size=batch_size)
    from split_infer_ros.preprocessing.device_preprocessor import DevicePreprocessor  # only here: it imports torch

    return DevicePreprocessor(
        preprocess, form, batch_size=batch_size, place=place, budget_bytes=budget_bytes, pool=pool
    )
