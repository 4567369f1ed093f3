"""What is measured, in which order, and what is known from earlier days."""

from __future__ import annotations

from pathlib import Path

import pytest
from brightness_models import BrightModel

from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.server.costs import table_model
from split_infer_ros.server.costs.cost_table import FUSION_BUDGET_S, MAX_EXECUTION_S, MAX_FUSED, CostTable
from split_infer_ros.server.schedule.execution_costs import Combination

KEY = Key({"device": "cpu"}, {"torch": "1"})
MODELS = {"one": BrightModel("one", 1), "two": BrightModel("two", 1), "big": BrightModel("big", 1000)}


def make_table(path: Path, max_batch_size: int = 4, key: Key = KEY) -> CostTable:
    return CostTable(key, Database(path), max_batch_size=max_batch_size, graphs=False)


def measure_all(table: CostTable, image_s: float, saving: float = 0.5) -> list[Combination]:
    """Everything that the table wants measured, in order.

    A model's first image takes ``image_s`` seconds, and each further one saves a part of that.
    """
    measured: list[Combination] = []
    while (combination := table.next_to_measure()) is not None:
        assert combination not in measured
        measured.append(combination)
        images = sum(1 + (count - 1) * (1 - saving) for _, count in combination)
        table.add_measured(combination, [image_s * images] * 3)
    table.save_costs()
    return measured


def test_batches_of_one_model_are_measured_first(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a")
    for name, model in MODELS.items():
        table.add_model(name, model, name)
    assert measure_all(table, 0.001) == [
        *((((name, size),)) for name in MODELS for size in (1, 2, 4)),
        (("one", 1), ("two", 1)), (("one", 2), ("two", 2)),
    ]  # fmt: skip
    costs = table.costs().whole
    assert costs.alone_s["big"] == {1: 0.001, 2: 0.0015, 4: 0.0025}
    assert costs.fused_s[("one", 2), ("two", 2)] == 0.003
    assert costs.is_small("one")
    assert not costs.is_small("big")


@pytest.mark.parametrize(("saving", "sizes"), [(0.5, [1, 2, 4, 8]), (0.3, [1, 2, 4, 8]), (0.1, [1, 2]), (0.0, [1, 2])])
def test_large_batches_are_measured_if_two_images_save_a_tenth(tmp_path: Path, saving: float, sizes: list[int]) -> None:
    """Each size may be compiled. A second image that saves a tenth saves a twentieth of both."""
    table = make_table(tmp_path / "a", max_batch_size=8)
    table.add_model("one", MODELS["one"], "x")
    assert measure_all(table, 0.001, saving) == [(("one", size),) for size in sizes]
    costs = table.costs().whole
    assert costs.batch_s("one", 8) == pytest.approx(0.001 * (8 - 7 * saving if len(sizes) > 2 else 4 * (2 - saving)))
    assert (costs.best_batch_size("one", 8) > 2) == (len(sizes) > 2)


def test_a_model_that_normalises_images_is_timed_with_pixels(tmp_path: Path) -> None:
    table, pixels = make_table(tmp_path / "a"), MODELS["one"].entry.preprocess.pixel_input
    table.add_model("one", MODELS["one"], "x")
    table.add_model("two", MODELS["two"], "x, from pixels", pixels)
    images = {name: blank_images(2) for name, blank_images in table.blank_images.items()}
    assert {name: batch.shape for name, batch in images.items()} == {"one": (2, 3, 4, 4), "two": (2, 4, 4, 3)}
    assert images["two"].dtype == pixels.dtype
    table.remove_model("two")
    assert list(table.blank_images) == ["one"]


def test_long_executions_are_not_measured(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a")
    table.add_model("one", MODELS["one"], "x")
    table.add_model("two", MODELS["two"], "x two")
    assert measure_all(table, 0.6 * MAX_EXECUTION_S) == [(("one", 1),), (("two", 1),)]
    assert table.costs().whole.batch_s("one", 4) == pytest.approx(2.4 * MAX_EXECUTION_S)


def test_time_for_fused_models_is_bounded(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a", max_batch_size=1)
    for index in range(10):
        table.add_model(f"m{index}", MODELS["one"], f"variant {index}")
    fused = measure_all(table, 0.05, saving=0.0)[10:]
    assert 3 * 0.05 * sum(sum(count for _, count in combination) for combination in fused[:-1]) < FUSION_BUDGET_S
    assert 0 < len(fused) < MAX_FUSED


def test_known_costs_are_not_measured_again_under_any_name(tmp_path: Path) -> None:
    first = make_table(tmp_path / "a")
    for name in ("one", "two"):
        first.add_model(name, MODELS[name], name)
    measure_all(first, 0.001)
    again = make_table(tmp_path / "a")
    for name, model in (("other", "one"), ("two", "two")):
        again.load_costs()
        again.add_model(name, MODELS[model], model)
    assert measure_all(again, 1.0) == []
    assert again.costs().whole.fused_s == {
        (("other", 1), ("two", 1)): 0.002,
        (("other", 2), ("two", 2)): 0.003,
    }
    elsewhere = make_table(tmp_path / "a", key=Key({"device": "other"}, {"torch": "1"}))
    elsewhere.load_costs()
    elsewhere.add_model("one", MODELS["one"], "one")
    assert elsewhere.next_to_measure() == (("one", 1),)


def test_costs_on_another_engine_or_version_are_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = "2026.4"
    monkeypatch.setattr(table_model, "engine_version", lambda engine: release)
    on_torch = MODELS["one"]
    config = ExecutionConfig(engine=Engine.OPENVINO)
    on_openvino = on_torch.placed(on_torch.device, config)
    merged = on_torch.placed(on_torch.device, ExecutionConfig(Convolutions.MERGED))
    for model in (on_torch, on_openvino, merged):
        table = make_table(tmp_path / "a")
        table.load_costs()
        table.add_model("one", model, "x")
        assert len(measure_all(table, 0.001)) == 3
    again = make_table(tmp_path / "a")
    again.load_costs()
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
    assert "one" not in table.costs().whole.alone_s
    table.add_measured((("two", 1),), [0.001])
    table.add_failed((("two", 2),))
    assert table.next_to_measure() is None
    assert not table.has_failed("two")
    table.remove_model("one")
    table.add_model("one", MODELS["one"], "x")
    assert not table.has_failed("one")
    assert table.next_to_measure() == (("one", 1),)


def test_a_failure_that_may_pass_costs_no_frames(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a", max_batch_size=1)
    table.add_model("one", MODELS["one"], "x")
    table.add_failed((("one", 1),), is_passing=True)
    assert not table.has_failed("one")
    assert table.next_to_measure() is None
    table.add_failed((("one", 1),))
    assert table.has_failed("one")


def test_a_failure_is_one_plans_of_one_model(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a", max_batch_size=1)
    for name in ("one", "two"):
        table.add_model(name, MODELS["one"], "x")  # both have the same network
    table.add_failed((("one", 1),))
    assert table.has_failed("one")
    assert not table.has_failed("two")
    table.add_model("one", MODELS["one"], "another engine")
    assert not table.has_failed("one")
    table.add_model("one", MODELS["one"], "x")
    assert table.has_failed("one")


def test_plans_in_turns_have_one_time_for_fused_models(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a", max_batch_size=1)
    for index in range(10):
        table.add_model(f"m{index}", MODELS["one"], f"variant {index}")
    measure_all(table, 0.05)
    table.add_model("m0", MODELS["one"], "a rival")
    assert len(measure_all(table, 0.05)) > 2
    for variant in ("variant 0", "a rival"):
        table.add_model("m0", MODELS["one"], variant)
        assert measure_all(table, 0.05) == []


def test_every_recorded_size_is_measured(tmp_path: Path) -> None:
    table = CostTable(KEY, Database(tmp_path / "a"), max_batch_size=11, graphs=True)
    table.add_model("one", MODELS["one"], "x")
    assert measure_all(table, 0.001, saving=0.0) == [(("one", size),) for size in (1, 2, 3, 4, 5, 6, 7, 8, 16)]
    assert table.costs().whole.batch_s("one", 5) == 0.005
    assert table.costs().whole.batch_s("one", 9) == 0.016, "it is padded"


class Stack:
    """Stands for a network of both models."""

    def __init__(self) -> None:
        self.name = "one + two"
        self.members = {name: MODELS[name] for name in ("one", "two")}


def stacked_table(path: Path) -> CostTable:
    table = make_table(path)
    table.load_costs()
    for name in ("one", "two"):
        table.add_model(name, MODELS[name], "same")
    return table


@pytest.mark.parametrize(("image_s", "pays"), [(0.0009, True), (0.00099, False)])
def test_stacks_are_measured_last_and_kept(tmp_path: Path, image_s: float, pays: bool) -> None:
    table = stacked_table(tmp_path / "a")
    assert table.stack_pays(["one", "two"]) is None, "nothing is known of the models"
    table.set_stacks([Stack()])  # type: ignore[list-item]
    found: list[Combination] = []
    while (combination := table.next_to_measure()) is not None:
        found.append(combination)
        is_stack = table.is_stack(combination)
        if combination == (("one + two", 1),):
            assert table.stack_pays(["one", "two"]) is None, "it may still pay"
        count = sum(count for _, count in combination)
        table.add_measured(combination, [image_s * 2 * count if is_stack else 0.001 * count] * 3)
    table.save_costs()
    assert found[-2:] == [(("one + two", 1),), (("one + two", 2),)]
    assert not any(table.is_stack(combination) for combination in found[:-2])
    assert table.stack_pays(["one", "two"]) is pays
    stack = table.costs().whole.stacks["one + two"]
    assert (stack.members, list(stack.seconds)) == (("one", "two"), [1, 2])
    assert table.costs().whole.parameters.keys() == {"one", "two"}
    again = stacked_table(tmp_path / "a")
    assert again.stack_pays(["one", "two"]) is pays, "known from the database, before the network is built"
    assert again.costs().whole.stacks == {}
    again.set_stacks([Stack()])  # type: ignore[list-item]
    assert again.next_to_measure() is None
    assert again.costs().whole.stacks["one + two"] == stack


def test_stack_that_fails_or_is_long_does_not_pay(tmp_path: Path) -> None:
    table = stacked_table(tmp_path / "a")
    table.set_stacks([Stack()])  # type: ignore[list-item]
    while (combination := table.next_to_measure()) is not None and not table.is_stack(combination):
        table.add_measured(combination, [0.4 * MAX_EXECUTION_S * sum(count for _, count in combination)] * 3)
    assert combination == (("one + two", 1),), "two images of each would take too long"
    table.add_failed(combination)
    assert table.next_to_measure() is None
    assert table.stack_pays(["one", "two"]) is False
    assert not table.has_failed("one")
    table.set_stacks([])
    table.set_stacks([Stack()])  # type: ignore[list-item]
    assert table.next_to_measure() == (("one + two", 1),), "another network may run"


def test_stack_of_a_model_without_lanes_is_not_measured_on_lanes(tmp_path: Path) -> None:
    table = CostTable(KEY, Database(tmp_path / "a"), max_batch_size=2, graphs=False, num_lanes=2)
    table.add_model("one", MODELS["one"], "same")
    table.add_model("two", MODELS["two"], "same", has_lanes=False)
    assert table.stack_pays(["one", "two"]) is None
    table.set_stacks([Stack()])  # type: ignore[list-item]
    while (combination := table.next_to_measure(2)) is not None:
        assert dict(combination).keys() == {"one"}
        table.add_measured(combination, [0.001] * 3, 2)
    while (combination := table.next_to_measure()) is not None:
        table.add_measured(combination, [0.001] * 3)
    assert table.stack_pays(["one", "two"]) is True
    modes = table.costs()
    assert (modes.whole.stacks.keys(), modes.lane.stacks) == ({"one + two"}, {})
    table.add_model("one", MODELS["one"], "same", has_lanes=False)
    assert table.costs().lane.alone_s == {}
