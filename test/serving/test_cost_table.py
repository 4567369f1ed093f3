"""What is measured, in which order, and what is known from earlier days."""

from __future__ import annotations

from pathlib import Path

import pytest
from bright import BrightModel

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.serving.cost_table import FUSED_S, LONGEST_S, MOST_FUSED, CostTable
from split_infer_ros.serving.execution_costs import Group

KEY = Key({"device": "cpu"}, {"torch": "1"})
MODELS = {"one": BrightModel("one", 1), "two": BrightModel("two", 1), "big": BrightModel("big", 1000)}


def table(path: Path, most: int = 4, key: Key = KEY) -> CostTable:
    return CostTable(key, Database(path), most, graphs=False)


def measure_all(found: CostTable, seconds: float) -> list[Group]:
    measured: list[Group] = []
    while (combination := found.to_measure()) is not None:
        assert combination not in measured
        measured.append(combination)
        found.note(combination, [seconds * sum(count for _, count in combination)] * 3)
    return measured


def test_batches_of_each_model_come_first_and_then_models_of_one_class(tmp_path: Path) -> None:
    found = table(tmp_path / "a")
    for name, model in MODELS.items():
        found.open(name, model, name)
    assert measure_all(found, 0.001) == [
        *((((name, size),)) for name in MODELS for size in (1, 2, 4)),
        (("one", 1), ("two", 1)), (("one", 2), ("two", 2)),
    ]  # fmt: skip
    costs = found.costs()
    assert costs.alone_s["big"] == {1: 0.001, 2: 0.002, 4: 0.004}
    assert costs.fused_s[("one", 2), ("two", 2)] == 0.004
    assert costs.is_small("one")
    assert not costs.is_small("big")


def test_what_takes_long_is_not_tried(tmp_path: Path) -> None:
    found = table(tmp_path / "a")
    found.open("one", MODELS["one"], "x")
    found.open("two", MODELS["two"], "x two")
    assert measure_all(found, 0.6 * LONGEST_S) == [(("one", 1),), (("two", 1),)]
    assert found.is_ready("one")
    assert found.costs().batch_s("one", 4) == pytest.approx(2.4 * LONGEST_S)


def test_models_as_one_are_measured_for_so_long_and_no_longer(tmp_path: Path) -> None:
    found = table(tmp_path / "a", most=1)
    for index in range(10):
        found.open(f"m{index}", MODELS["one"], f"cut {index}")
    fused = measure_all(found, 0.05)[10:]
    assert 3 * 0.05 * sum(sum(count for _, count in combination) for combination in fused[:-1]) < FUSED_S
    assert 0 < len(fused) < MOST_FUSED


def test_what_is_known_is_not_measured_again_whatever_it_is_called(tmp_path: Path) -> None:
    first = table(tmp_path / "a")
    for name in ("one", "two"):
        first.open(name, MODELS[name], name)
    measure_all(first, 0.001)
    again = table(tmp_path / "a")
    for name, model in (("other", "one"), ("two", "two")):
        again.recall(MODELS[model])
        again.open(name, MODELS[model], model)
    assert measure_all(again, 1.0) == []
    assert again.costs().fused_s == {(("other", size), ("two", size)): 0.002 * size for size in (1, 2)}
    elsewhere = table(tmp_path / "a", key=Key({"device": "other"}, {"torch": "1"}))
    elsewhere.recall(MODELS["one"])
    elsewhere.open("one", MODELS["one"], "one")
    assert not elsewhere.is_ready("one")


def test_what_fails_is_not_tried_again(tmp_path: Path) -> None:
    found = table(tmp_path / "a")
    found.open("one", MODELS["one"], "x")
    found.open("two", MODELS["two"], "y")
    found.note_failed((("one", 1),))
    assert found.failed("one")
    assert "one" not in found.costs().alone_s
    found.note((("two", 1),), [0.001])
    found.note_failed((("two", 2),))
    assert found.to_measure() is None
    assert found.is_ready("two")
    assert not found.failed("two")
    found.close("one")
    found.open("one", MODELS["one"], "x")
    assert not found.failed("one")
    assert found.to_measure() == (("one", 1),)
