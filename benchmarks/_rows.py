"""What a row of a report says of samples: their median, its interval, and how many turns it rests on."""

from __future__ import annotations

import math

from numpy.typing import ArrayLike

from split_infer_ros.telemetry.estimate import Estimate, median


def measured(samples: ArrayLike, unit: str, scale: float) -> dict[str, float | int | None]:
    """The samples' median and interval, ``scale`` times each, under names that end in the unit."""
    return of_estimate(median(samples).times(scale), unit)


def of_estimate(found: Estimate, unit: str) -> dict[str, float | int | None]:
    """A figure and its interval under names that end in the unit."""
    return {
        unit: finite(found.value),
        f"low_{unit}": finite(found.low),
        f"high_{unit}": finite(found.high),
        "turns": found.turns,
    }


def finite(value: float) -> float | None:
    """The value, or None where JSON has no number for it."""
    return value if math.isfinite(value) else None
