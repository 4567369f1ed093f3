"""Chooses which uncertain measurement of a network is repeated."""

from __future__ import annotations

from collections.abc import Sequence

from split_infer_ros.measurements.database import best_of
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.space import Config, Frozen, frozen

MAX_REPEATS = 3  # how often a configuration that is uncertain and would be the best is measured


def uncertain_best(records: Sequence[Record]) -> Config | None:
    """Returns the configuration to measure once more; None if there is none.

    It is the fastest configuration that is uncertain in all its measurements, if it is faster than the best certain
    record. Configurations that were measured ``MAX_REPEATS`` times are left out.
    """
    best = best_of(records)
    found: dict[Frozen, list[Record]] = {}
    for record in records:
        if "segments" not in record.config:
            found.setdefault(frozen(record.config), []).append(record)
    uncertain = [
        measured[-1]
        for measured in found.values()
        if len(measured) < MAX_REPEATS and all(each.uncertain for each in measured)
        if best is None or measured[-1].median_s < best.median_s
    ]
    return min(uncertain, key=lambda record: record.median_s).config if uncertain else None
