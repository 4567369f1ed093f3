"""What the frames of a model or a task hold."""

from __future__ import annotations

import enum
from typing import Any

from split_infer_ros.images.encodings import Pixels


class Takes(enum.Enum):
    """What frames hold, and with it the form of the boxes that are found in them.

    - ``IMAGES``: ``Pixels``. A box has four numbers: left, top, right, bottom in pixels.
    - ``POINTS``: the points of a point cloud, float32 (n, 3) in metres. A box has six numbers: the lowest x, y and z,
      then the highest, in metres.
    """

    IMAGES = "images"
    POINTS = "points"

    @classmethod
    def of(cls, payload: Any) -> Takes:
        """Returns what a frame with this payload holds."""
        return cls.IMAGES if isinstance(payload, Pixels) else cls.POINTS

    @property
    def box_numbers(self) -> int:
        """How many numbers a box has."""
        return 4 if self is Takes.IMAGES else 6
