"""A pre-processed batch: the input of a backbone. All pre-processors return it."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.runtime.streams import Fence


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A pre-processed batch.

    Attributes:
        images: (N, 3, h, w) on the backbone's device; (N, h, w, 3) of 0..255 for a backbone that normalises images.
        ready: once this fence has passed, ``images`` holds the batch.
    """

    images: Values
    ready: Fence
