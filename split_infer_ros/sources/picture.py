"""A picture, and the protocol of every source of pictures."""

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
        encoding: the order of the channels: ``rgb8`` or ``bgr8``.
        name: a file's name, or a number with its kind, such as ``frame 3``.
        truth: the objects in the picture; None if they are not known.
        stamp: seconds and nanoseconds of the recorded time; None if there is no recording.
        frame_id: the recorded coordinate frame of the camera; None if there is no recording.
    """

    image: NDArray[np.uint8]
    encoding: Literal["rgb8", "bgr8"]
    name: str
    truth: Scene | None = None
    stamp: tuple[int, int] | None = None
    frame_id: str | None = None


class Source(Iterator[Picture], Protocol):
    """An iterator of pictures. The next picture may take a while. A source that breaks off raises SourceError."""

    def close(self) -> None:
        """Closes the file or device. After that, the iterator yields no picture. Further calls do nothing."""
