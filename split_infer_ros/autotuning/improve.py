"""When the engine of a model without measurements is chosen by measuring."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class Improve(enum.Enum):
    """When engines are compared for a model that this machine has not measured yet.

    - ``BACKGROUND``: the model serves at once. Engines are tried beside it, and the faster ones take turns on live
      frames.
    - ``BEFORE_START``: before the first frame.
    - ``NEVER``: not at all. (The word off would do, but YAML reads it as false.)
    """

    BACKGROUND = "background"
    BEFORE_START = "before_start"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Measuring:
    """Says what may be measured for a model that a node opens.

    Attributes:
        say: called with a line before and after a measurement.
        improve: when engines are compared if they were not compared before.
    """

    say: Callable[[str], object]
    improve: Improve
