"""When a model that this machine has not measured yet is measured."""

from __future__ import annotations

import enum


class Improve(enum.Enum):
    """When engines and, with split point ``auto``, split points are compared for a model without measurements.

    - ``BACKGROUND``: the model serves at once. Engines are tried beside it, and the faster ones take turns on live
      frames. So do split points.
    - ``BEFORE_START``: before the first frame.
    - ``NEVER``: not at all. (The word off would do, but YAML reads it as false.)
    """

    BACKGROUND = "background"
    BEFORE_START = "before_start"
    NEVER = "never"
