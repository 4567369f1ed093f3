"""What is measured, in which order, and what is known from earlier days."""

from __future__ import annotations

from pathlib import Path

import pytest
from bright import BrightModel

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import ExecutionConfig
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.serving import cost_table
from split_infer_ros.serving.cost_table import FUSION_BUDGET_S, MAX_EXECUTION_S, MAX_FUSED, CostTable
from split_infer_ros.serving.execution_costs import Combination

KEY = Key({"device": "cpu"}, {"torch": "1"})
MODELS = {"one": BrightModel("one", 1), "two": BrightModel("two", 1), "big": BrightModel("big", 1000)}


def make_table(path: Path, max_batch_size: int = 4, key: Key = KEY) -> CostTable:
    return CostTable(key, Database(path), max_batch_size=max_batch_size, graphs=False)


def measure_all(table: CostTable, image_s: float) -> list[Combination]:
    """Everything that the table wants measured, in order; each image takes ``image_s`` seconds."""
    measured: list[Combination] = []
    while (combination := table.next_to_measure()) is not None:
        assert combination not in measured
        measured.append(combination)
        table.add_measured(combination, [image_s * sum(count for _, count in combination)] * 3)
    return measured


def test_batches_of_one_model_are_measured_first(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a")
    for name, model in MODELS.items():
        table.add_model(name, model, name)
    assert measure_all(table, 0.001) == [
        *((((name, size),)) for name in MODELS for size in (1, 2, 4)),
        (("one", 1), ("two", 1)), (("one", 2), ("two", 2)),
    ]  # fmt: skip
    costs = table.costs()
    assert costs.alone_s["big"] == {1: 0.001, 2: 0.002, 4: 0.004}
    assert costs.fused_s[("one", 2), ("two", 2)] == 0.004
    assert costs.is_small("one")
    assert not costs.is_small("big")


def test_long_executions_are_not_measured(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a")
    table.add_model("one", MODELS["one"], "x")
    table.add_model("two", MODELS["two"], "x two")
    assert measure_all(table, 0.6 * MAX_EXECUTION_S) == [(("one", 1),), (("two", 1),)]
    assert table.is_ready("one")
    assert table.costs().batch_s("one", 4) == pytest.approx(2.4 * MAX_EXECUTION_S)


def test_time_for_fused_models_is_bounded(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a", max_batch_size=1)
    for index in range(10):
        table.add_model(f"m{index}", MODELS["one"], f"variant {index}")
    fused = measure_all(table, 0.05)[10:]
    assert 3 * 0.05 * sum(sum(count for _, count in combination) for combination in fused[:-1]) < FUSION_BUDGET_S
    assert 0 < len(fused) < MAX_FUSED


def test_known_costs_are_not_measured_again_under_any_name(tmp_path: Path) -> None:
    first = make_table(tmp_path / "a")
    for name in ("one", "two"):
        first.add_model(name, MODELS[name], name)
    measure_all(first, 0.001)
    again = make_table(tmp_path / "a")
    for name, model in (("other", "one"), ("two", "two")):
        again.load_costs(MODELS[model])
        again.add_model(name, MODELS[model], model)
    assert measure_all(again, 1.0) == []
    assert again.costs().fused_s == {(("other", size), ("two", size)): 0.002 * size for size in (1, 2)}
    elsewhere = make_table(tmp_path / "a", key=Key({"device": "other"}, {"torch": "1"}))
    elsewhere.load_costs(MODELS["one"])
    elsewhere.add_model("one", MODELS["one"], "one")
    assert not elsewhere.is_ready("one")


def test_costs_on_another_engine_or_version_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = "2026.4"
    monkeypatch.setattr(cost_table, "engine_version", lambda engine: release)
    on_torch = MODELS["one"]
    config = ExecutionConfig(engine=Engine.OPENVINO)
    on_openvino = on_torch.placed(on_torch.device, on_torch.dtype, config)
    for model in (on_torch, on_openvino):
        table = make_table(tmp_path / "a")
        table.load_costs(model)
        table.add_model("one", model, "x")
        assert len(measure_all(table, 0.001)) == 3
    again = make_table(tmp_path / "a")
    again.load_costs(on_openvino)
    again.add_model("one", on_openvino, "x")
    assert measure_all(again, 0.001) == []
    release = "2027.0"
    again.add_model("one", on_openvino, "x")
    assert len(measure_all(again, 0.001)) == 3


def test_failed_executions_are_not_measured_again(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a")
    table.add_model("one", MODELS["one"], "x")
    table.add_model("two", MODELS["two"], "y")
    table.add_failed((("one", 1),))
    assert table.has_failed("one")
    assert "one" not in table.costs().alone_s
    table.add_measured((("two", 1),), [0.001])
    table.add_failed((("two", 2),))
    assert table.next_to_measure() is None
    assert table.is_ready("two")
    assert not table.has_failed("two")
    table.remove_model("one")
    table.add_model("one", MODELS["one"], "x")
    assert not table.has_failed("one")
    assert table.next_to_measure() == (("one", 1),)
