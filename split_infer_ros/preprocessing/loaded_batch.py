"""A batch as a backbone gets it: what all pre-processors return."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import Values
from split_infer_ros.runtime.streams import Fence


@dataclass(frozen=True, slots=True, eq=False)
class LoadedBatch:
    """A pre-processed batch.

    Attributes:
        images: (N, 3, h, w) on the backbone's device; (N, h, w, 3) of 0..255 for a backbone that normalises them.
        ready: the fence from which on ``images`` holds the batch.
    """

    images: Values
    ready: Fence
