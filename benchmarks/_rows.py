"""Rows of reports, and units."""

from __future__ import annotations

from collections.abc import Sequence

from split_infer_ros.telemetry.estimate import median


def in_ms(seconds: Sequence[float]) -> list[float]:
    """Seconds as milliseconds."""
    return [1e3 * value for value in seconds]


def measured(**samples: Sequence[float]) -> dict[str, float]:
    """For a row: the median of each figure's samples, and the ends of its 95 % interval."""
    row = {"turns": max(map(len, samples.values()))}
    for name, values in samples.items():
        found = median(values)
        row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
    return row
