"""Makes the parts of a report's row that describe samples: the median, its interval, and the number of turns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from numpy.typing import ArrayLike

from benchmarks.common.estimate import Estimate, median

Row = dict[str, float | int | None]


def measured(**samples: ArrayLike) -> Row:
    """Returns the median of each figure's samples, the ends of the median's 95 % interval, and the number of turns.

    Their names are those of ``of_estimate``.
    """
    row: Row = {}
    for name, values in samples.items():
        row |= of_estimate(median(values), name)
    return row


def of_estimate(found: Estimate, name: str) -> Row:
    """Returns a figure as ``name``, the ends of its interval as ``name_low`` and ``name_high``, and its ``turns``."""
    return {
        name: finite(found.value),
        f"{name}_low": finite(found.low),
        f"{name}_high": finite(found.high),
        "turns": found.turns,
    }


def finite(value: float) -> float | None:
    """Returns the value; None if it is not finite, because JSON has no such numbers."""
    return value if math.isfinite(value) else None


def in_ms(seconds: Sequence[float]) -> list[float]:
    """Returns seconds as milliseconds."""
    return [1e3 * value for value in seconds]


def in_us(seconds: Sequence[float]) -> list[float]:
    """Returns seconds as microseconds."""
    return [1e6 * value for value in seconds]
