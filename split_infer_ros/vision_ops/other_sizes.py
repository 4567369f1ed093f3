"""What was measured of a template at other sizes, from which the cost model learns about new ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.measurements.record import Record
from split_infer_ros.search.cost_model import Sample
from split_infer_ros.search.space import Space
from split_infer_ros.search.strategies import Tried, relative_costs

MAX_SAMPLES = 150  # the cost model takes a second and more for several times as many


def size_features(task: Mapping[str, Any]) -> dict[str, float]:
    """Returns the sizes of an operator's task as powers of ten, numbers whose differences by 1 matter."""
    return {f"size {place}": math.log10(max(1, size)) for place, size in enumerate(_sizes(task))}


def samples_at_other_sizes(database: Database, key: Key, task: Mapping[str, Any], space: Space) -> list[Sample]:
    """Returns samples of the same operator and precision at other sizes, the nearest ones, at most ``MAX_SAMPLES``.

    Args:
        database: where the records are.
        key: of this machine.
        task: what is searched now, whose own records are left out.
        space: records of other configurations are left out.
    """
    here = size_features(task)
    by_sizes: dict[tuple[int, ...], list[Record]] = {}
    for record in database.records():
        sizes = _sizes(record.task)
        is_other = _without_sizes(record.task) == _without_sizes(task) and sizes != _sizes(task)
        if is_other and len(sizes) == len(here) and key.fits(record) and record.config in space:
            by_sizes.setdefault(sizes, []).append(record)
    samples = []
    for records in by_sizes.values():
        tried = [Tried(record.config, record.median_s) for record in records if not record.uncertain]
        samples += relative_costs(tried, space.default, size_features(records[0].task))
    samples.sort(key=lambda sample: math.dist(list(sample.features.values()), list(here.values())))
    return samples[:MAX_SAMPLES]


def _sizes(task: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the sizes in a task; none if a file has something else there."""
    shapes = task.get("shapes")
    sizes = shapes[0] if isinstance(shapes, list) and len(shapes) == 1 else None
    if not isinstance(sizes, list) or not all(type(size) is int for size in sizes):
        return ()
    return tuple(sizes)


def _without_sizes(task: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in task.items() if name != "shapes"}
