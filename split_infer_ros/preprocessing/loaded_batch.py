"""Batches of images for a backbone: the form in which the backbone takes images, and a batch that was pre-processed."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import DType, Values
from split_infer_ros.runtime.streams import Fence


@dataclass(frozen=True, slots=True)
class BatchForm:
    """The form in which a backbone takes batches of N normalised images, (N, 3, h, w).

    Attributes:
        dtype: the dtype of the images, which is the backbone's precision.
        channels_last: whether the channels of a pixel lie side by side in memory.
        is_array: whether a backbone on a CPU takes arrays. Otherwise it takes tensors.
    """

    dtype: DType
    channels_last: bool = True
    is_array: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A pre-processed batch of N images, as every pre-processor returns it.

    Attributes:
        images: (N, 3, h, w) on the backbone's device; (N, h, w, 3) of 0..255 for a backbone that normalises images.
        ready: once this fence has passed, ``images`` holds the batch.
    """

    images: Values
    ready: Fence
