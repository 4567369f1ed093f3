"""What every source gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from split_infer_ros.sources.scenes import Scene


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture of a source.

    Attributes:
        image: uint8 (height, width, 3), contiguous.
        encoding: the order of the channels.
        name: which picture it is: a file's name, a number.
        truth: the objects in it, where they are known.
        stamp: when it was taken, seconds and nanoseconds, where it was recorded.
        frame_id: likewise, the coordinate frame of the camera that took it.
    """

    image: NDArray[np.uint8]
    encoding: Literal["rgb8", "bgr8"]
    name: str
    truth: Scene | None = None
    stamp: tuple[int, int] | None = None
    frame_id: str | None = None


class Source(Iterator[Picture], Protocol):
    """Gives pictures until it ends; asking for one may wait for it, and raises SourceError where it breaks off."""

    def close(self) -> None:
        """Lets go of file or device; may be called twice. Nothing comes after it."""
