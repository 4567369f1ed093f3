from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.search.space import Space
from split_infer_ros.vision_ops import other_sizes
from split_infer_ros.vision_ops.other_sizes import samples_at_other_sizes, size_features

HERE = Key.here("cpu")
SPACE = Space({"tile": (1, 2, 4)})


def task(*sizes: int, operator: str = "windowed schedule", precision: str = "float16") -> dict[str, Any]:
    return {"operator": operator, "shapes": [list(sizes)], "precision": precision}


def add(database: Database, of: dict[str, Any], costs: dict[int, float], key: Key = HERE, **facts: bool) -> None:
    database.add(key.record(of, {"tile": tile}, (cost,), time=1.0, facts=facts) for tile, cost in costs.items())


def test_costs_at_other_sizes_are_relative_to_their_default(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    add(database, task(1000, 10), {1: 2.0, 2: 1.0})
    add(database, task(100, 10), {1: 5.0, 4: 10.0})
    samples = samples_at_other_sizes(database, HERE, task(10, 10), SPACE)
    found = [(sample.config["tile"], sample.relative, sample.features["size 0"]) for sample in samples]
    assert found == [
        (1, 0.0, 2.0),
        (4, pytest.approx(math.log(2)), 2.0),
        (1, 0.0, 3.0),
        (2, pytest.approx(-math.log(2)), 3.0),
    ]
    assert size_features(task(10, 0)) == {"size 0": 1.0, "size 1": 0.0}


def test_the_nearest_sizes_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_sizes, "MAX_SAMPLES", 3)
    database = Database(tmp_path / "tuning.jsonl")
    for size in (100_000, 10, 1000):
        add(database, task(size), {1: 1.0, 2: 2.0})
    samples = samples_at_other_sizes(database, HERE, task(1), SPACE)
    assert [sample.features["size 0"] for sample in samples] == [1.0, 1.0, 3.0]


def test_what_says_nothing_of_this_task_is_left_out(tmp_path: Path) -> None:
    database = Database(tmp_path / "tuning.jsonl")
    wanted = task(8, 8)
    add(database, wanted, {1: 1.0})  # its own
    add(database, task(8, 4, operator="pointwise schedule"), {1: 1.0})
    add(database, task(8, 4, precision="float32"), {1: 1.0})
    add(database, task(8, 4), {3: 1.0})  # not in the space
    add(database, task(8, 4), {1: 1.0}, uncertain=True)
    add(database, task(8, 4), {1: 1.0}, replace(HERE, target={**HERE.target, "device": "another"}))
    for shapes in (None, "8", [], [[8, 4], [8, 4]], [8], [[8]], [["8", 4]], [[True, 4]]):  # of a file from elsewhere
        add(database, {**wanted, "shapes": shapes}, {1: 1.0})
    assert samples_at_other_sizes(database, HERE, wanted, SPACE) == []
    add(database, task(8, 4), {1: 1.0})
    assert len(samples_at_other_sizes(database, HERE, wanted, SPACE)) == 1
