"""Reads measurements of other models on this machine. From them, the cost model learns about a new model."""

from __future__ import annotations

import math

from split_infer_ros.autotuning.spaces import NETWORK
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.cost_model import Sample
from split_infer_ros.search.space import Space
from split_infer_ros.search.strategies import Tried, relative_costs

MAX_SAMPLES = 150


def samples_of_other_models(database: Database, key: Key, *, fingerprint: str, space: Space) -> list[Sample]:
    """Returns the latest samples of other models' networks, at most ``MAX_SAMPLES``.

    A sample is a configuration, its time relative to that of the model's default configuration, and the model's
    features.

    Args:
        database: holds the records.
        key: the key of this machine.
        fingerprint: the fingerprint of the model that is tuned. Its own records are left out.
        space: the space of configurations. Records outside it are left out.
    """
    groups: dict[str, list[Record]] = {}
    for record in database.records():
        own = record.task.get("fingerprint") == fingerprint
        if key.fits(record) and record.task.get("stage") == NETWORK and not own and record.config in space:
            groups.setdefault(repr(sorted(record.task.items())), []).append(record)
    samples = [
        sample
        for records in groups.values()
        for sample in relative_costs(
            [Tried(record.config, record.median_s) for record in records if not record.uncertain],
            space.default,
            _finite_numbers(records[-1].facts.get("traits")),
        )
    ]
    return samples[-MAX_SAMPLES:]


def _finite_numbers(features: object) -> dict[str, float]:
    if not isinstance(features, dict):
        return {}
    return {
        str(name): float(value)
        for name, value in features.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
