"""Costs are measured between other work, and what is recorded is rehearsed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from brightness_models import BrightModel
from torch import Tensor

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.server.costs.cost_measurer import MAX_ROUNDS, MIN_ROUNDS, WARM_UPS, CostMeasurer
from split_infer_ros.server.costs.cost_table import CostTable
from split_infer_ros.server.schedule.execution_costs import Combination
from split_infer_ros.server.schedule.scheduler import Rules

FAST_S = 2**-7
RULES = Rules(window=3)


class Graphs:
    """The graphs of a runner that records, with room for so many models."""

    most_missed: Combination | None = None
    room = 9

    def has_room(self, combination: Combination) -> bool:
        return len(combination) <= self.room


class Runner:
    """Counts what it is told to do; may record, and may fail at one batch size."""

    def __init__(self, records: bool) -> None:
        self.graphs = Graphs() if records else None
        self.prepared: list[dict[str, int]] = []
        self.ran: list[dict[str, int]] = []
        self.fails_at = 0

    def prepare(self, inputs: Mapping[str, Tensor]) -> None:
        self.prepared.append({name: len(images) for name, images in inputs.items()})

    def run(self, inputs: Mapping[str, Tensor]) -> None:
        self.ran.append({name: len(images) for name, images in inputs.items()})
        if max(map(len, inputs.values())) == self.fails_at:
            raise RuntimeError("no memory")


def make_table(path: Path, max_batch_size: int, *, graphs: bool = False, num_lanes: int = 0) -> CostTable:
    key = Key({"device": "x"}, {})
    return CostTable(key, Database(path), max_batch_size=max_batch_size, graphs=graphs, num_lanes=num_lanes)


@pytest.fixture
def table(tmp_path: Path) -> CostTable:
    table = make_table(tmp_path / "a", 2)
    table.add_model("one", BrightModel("one"), "x")
    return table


def clock(*durations_s: float) -> Iterator[float]:
    """Executions, those that warm up included, take these durations, again and again."""
    now = 0.0
    while True:
        for duration_s in durations_s:
            yield now
            now += duration_s
            yield now


def make_measurer(runner: Runner, table: CostTable, *durations_s: float) -> CostMeasurer:
    return CostMeasurer(table, {0: runner}, clock(*(durations_s or (0.01,))).__next__)  # type: ignore[dict-item]


def measure_all(measurer: CostMeasurer) -> None:
    measurer.restart(RULES)
    while (measurement := measurer.next_measurement()) is not None:
        if measurer.step(measurement):
            assert measurer.finish(measurement)


def test_each_step_is_one_execution(table: CostTable) -> None:
    runner = Runner(records=False)
    measurer = make_measurer(runner, table)
    assert measurer.done
    measure_all(measurer)
    assert measurer.done
    assert [counts["one"] for counts in runner.ran] == [1] * (MIN_ROUNDS + WARM_UPS) + [2] * (MIN_ROUNDS + WARM_UPS)
    assert sorted(table.costs().whole.alone_s["one"]) == [1, 2]
    measure_all(measurer)
    assert len(runner.ran) == 2 * (MIN_ROUNDS + WARM_UPS)


def test_more_samples_are_taken_if_they_disagree(table: CostTable) -> None:
    table.max_batch_size = 1
    runner = Runner(records=False)
    measure_all(make_measurer(runner, table, *(FAST_S * factor for factor in (1, 1, 1, 2, 2, 1, 1))))
    assert len(runner.ran) == 2 + 5, "the median is as fast as the fastest after five"
    assert table.costs().whole.alone_s["one"] == {1: FAST_S}


def test_doubtful_cost_is_measured_again_another_day(tmp_path: Path) -> None:
    for _ in range(2):
        table = make_table(tmp_path / "b", 1)
        table.load_costs()
        table.add_model("one", BrightModel("one"), "x")
        assert table.next_to_measure() == (("one", 1),)
        runner = Runner(records=False)
        measure_all(make_measurer(runner, table, FAST_S, 2 * FAST_S, 2 * FAST_S))
        table.save_costs()
        assert len(runner.ran) == 2 + MAX_ROUNDS
        assert table.costs().whole.alone_s["one"] == {1: 2 * FAST_S}, "for now"


def test_batches_of_every_mode_come_before_fused_models(tmp_path: Path) -> None:
    table = make_table(tmp_path / "a", 1, num_lanes=2)
    for name in ("one", "two"):
        table.add_model(name, BrightModel(name), f"variant of {name}")
    runners = {mode: Runner(records=False) for mode in (0, 2)}
    measurer = CostMeasurer(table, runners, clock(0.01).__next__)  # type: ignore[arg-type]
    order = []
    measurer.restart(RULES)
    while (measurement := measurer.next_measurement()) is not None:
        while not measurer.step(measurement):
            pass
        order.append((measurement.mode, len(measurement.combination)))
        assert measurer.finish(measurement)
    table.save_costs()
    assert order == [(0, 1), (0, 1), (2, 1), (2, 1), (0, 2), (0, 2)]
    modes = table.costs()
    assert modes.num_lanes == 2
    assert len(modes.whole.fused_s) == 2
    assert modes.lane.fused_s == {}
    again = make_table(tmp_path / "a", 1, num_lanes=3)
    again.load_costs()
    again.add_model("one", BrightModel("one"), "variant of one")
    assert again.next_to_measure() is None
    assert again.next_to_measure(3) == (("one", 1),), "neither all cores nor two lanes tell of three"


def test_known_costs_are_rehearsed_by_a_recording_runner(table: CostTable) -> None:
    for size in (1, 2):
        table.add_measured((("one", size),), [0.001])
    runner = Runner(records=True)
    measurer = make_measurer(runner, table)
    measure_all(measurer)
    measure_all(measurer)
    assert [counts["one"] for counts in runner.ran] == [1, 1, 2, 2]
    assert runner.prepared == [{"one": 1}, {"one": 2}]
    assert table.costs().whole.alone_s["one"] == {1: 0.001, 2: 0.001}


@pytest.mark.parametrize(("pair_s", "sizes"), [(0.0012, [2, 4]), (0.0019, [])])
def test_known_batches_that_pay_are_run_before_frames_need_them(
    tmp_path: Path, pair_s: float, sizes: list[int]
) -> None:
    """Without recording, an engine compiles or packs a batch size when it first runs, in each execution mode."""
    table = make_table(tmp_path / "a", 4, num_lanes=2)
    table.add_model("one", BrightModel("one"), "x")
    for mode in (0, 2):
        for size, seconds in ((1, 0.001), (2, pair_s), (4, 2 * pair_s)):
            table.add_measured((("one", size),), [seconds], mode)
    runners = {mode: Runner(records=False) for mode in (0, 2)}
    measurer = CostMeasurer(table, runners, clock(0.01).__next__)  # type: ignore[arg-type]
    measure_all(measurer)
    measure_all(measurer)
    for runner in runners.values():
        assert [counts["one"] for counts in runner.ran] == [size for size in sizes for _ in range(WARM_UPS)]
    assert table.costs().whole.alone_s["one"] == {1: 0.001, 2: pair_s, 4: 2 * pair_s}


@pytest.fixture
def three_models(tmp_path: Path) -> CostTable:
    """Two small models that gain from being fused, and a large one; all costs are known."""
    table = make_table(tmp_path / "a", 2, graphs=True)
    for name, idle in (("one", 1), ("two", 1), ("big", 1000)):
        table.add_model(name, BrightModel(name, idle), name)
        for size in (1, 2):
            table.add_measured(((name, size),), [0.001 * size**0.5])
    for size in (1, 2):
        table.add_measured((("one", size), ("two", size)), [0.001 * size**0.5])
    return table


def test_foreseen_combinations_are_recorded_ahead(three_models: CostTable) -> None:
    runner = Runner(records=True)
    measure_all(make_measurer(runner, three_models))
    assert [counts for counts in runner.prepared if len(counts) == 2] == [
        {"one": 1, "two": 1}, {"one": 2, "two": 2}, {"one": 1, "two": 2}, {"one": 2, "two": 1}
    ]  # fmt: skip
    assert runner.graphs is not None
    without_room = Runner(records=True)
    without_room.graphs.room = 1  # type: ignore[union-attr]
    measure_all(make_measurer(without_room, three_models))
    fused = [counts for counts in without_room.prepared if len(counts) == 2]
    assert fused == [{"one": 1, "two": 1}, {"one": 2, "two": 2}]
    assert sum(len(counts) == 1 for counts in without_room.prepared) == 6


def test_missed_combination_is_recorded_only_when_idle(three_models: CostTable) -> None:
    runner = Runner(records=True)
    measurer = make_measurer(runner, three_models)
    measure_all(measurer)
    runner.prepared.clear()
    assert runner.graphs is not None
    runner.graphs.most_missed = ("gone", 1), ("one", 4)
    assert measurer.next_measurement(is_idle=True) is None
    runner.graphs.most_missed = ("one", 4), ("two", 1)
    assert measurer.next_measurement() is None
    measurement = measurer.next_measurement(is_idle=True)
    assert measurement is not None
    assert measurer.done
    while not measurer.step(measurement):
        pass
    assert measurer.finish(measurement)
    assert runner.prepared == [{"one": 4, "two": 1}]
    assert len(three_models.costs().whole.fused_s) == 2


def test_combination_that_cannot_be_recorded_is_still_served(three_models: CostTable) -> None:
    runner = Runner(records=True)
    measurer = make_measurer(runner, three_models)
    measure_all(measurer)
    assert runner.graphs is not None
    runner.graphs.most_missed, runner.fails_at = (("one", 1),), 1
    measurement = measurer.next_measurement(is_idle=True)
    assert measurement is not None
    assert measurer.step(measurement)
    assert measurer.finish(measurement)
    assert str(measurement.failure) == "no memory"
    assert not three_models.has_failed("one")


def test_failing_batch_size_is_left_out(table: CostTable) -> None:
    runner = Runner(records=False)
    runner.fails_at = 2
    measure_all(make_measurer(runner, table))
    assert list(table.costs().whole.alone_s["one"]) == [1]
    assert [counts["one"] for counts in runner.ran].count(2) == 1


def test_result_does_not_count_once_models_changed(table: CostTable) -> None:
    measurer = make_measurer(Runner(records=False), table)
    measurer.restart(RULES)
    measurement = measurer.next_measurement()
    assert measurement is not None
    table.remove_model("one")
    measurer.restart(RULES)
    while not measurer.step(measurement):
        pass
    assert not measurer.finish(measurement)
    assert measurer.next_measurement() is None
    assert table.costs().whole.alone_s == {}
