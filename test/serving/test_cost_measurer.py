"""Measuring between other work, and rehearsing what is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from bright import BrightModel
from torch import Tensor

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.serving.cost_measurer import MOST_ROUNDS, ROUNDS, CostMeasurer
from split_infer_ros.serving.cost_table import CostTable
from split_infer_ros.serving.execution_costs import Group
from split_infer_ros.serving.scheduler import Rules

FAST_S = 2**-7
RULES = Rules(window=3)


class Graphs:
    """Those of an engine that records, with room for so many models."""

    wanted: Group | None = None
    room = 9

    def has_room(self, combination: Group) -> bool:
        return len(combination) <= self.room


class Engine:
    """One that records, or not, and may fail."""

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


@pytest.fixture
def table(tmp_path: Path) -> CostTable:
    found = CostTable(Key({"device": "x"}, {}), Database(tmp_path / "a"), 2, graphs=False)
    found.open("one", BrightModel("one"), "x")
    return found


def clock(*lengths_s: float) -> Iterator[float]:
    """Executions, blank ones of warming up included, take so long, again and again."""
    now = 0.0
    while True:
        for length in lengths_s:
            yield now
            now += length
            yield now


def measure(engine: Engine, table: CostTable, *lengths_s: float) -> CostMeasurer:
    return CostMeasurer([(engine, table)], clock(*(lengths_s or (0.01,))).__next__)  # type: ignore[list-item]


def run(measurer: CostMeasurer) -> None:
    measurer.begin_anew(RULES)
    while (measurement := measurer.pick()) is not None:
        if measurer.step(measurement):
            assert measurer.conclude(measurement)


def test_each_step_is_one_execution(table: CostTable) -> None:
    engine = Engine(records=False)
    measurer = measure(engine, table)
    assert measurer.done
    run(measurer)
    assert measurer.done
    assert [counts["one"] for counts in engine.ran] == [1] * (ROUNDS + 2) + [2] * (ROUNDS + 2)
    assert sorted(table.costs().alone_s["one"]) == [1, 2]
    run(measurer)
    assert len(engine.ran) == 2 * (ROUNDS + 2)


def test_samples_that_disagree_are_more_and_what_stays_in_doubt_is_measured_anew_another_day(
    tmp_path: Path, table: CostTable
) -> None:
    table.most = 1
    engine = Engine(records=False)
    run(measure(engine, table, *(FAST_S * times for times in (1, 1, 1, 2, 2, 1, 1))))
    assert len(engine.ran) == 2 + 5, "the median is as fast as the fastest after five"
    assert table.costs().alone_s["one"] == {1: FAST_S}
    table.close("one")
    doubtful = CostTable(Key({"device": "x"}, {}), Database(tmp_path / "b"), 1, graphs=False)
    for _ in range(2):
        doubtful.recall(BrightModel("one"))
        doubtful.open("one", BrightModel("one"), "x")
        assert not doubtful.is_ready("one")
        engine = Engine(records=False)
        run(measure(engine, doubtful, FAST_S, 2 * FAST_S, 2 * FAST_S))
        assert len(engine.ran) == 2 + MOST_ROUNDS
        assert doubtful.costs().alone_s["one"] == {1: 2 * FAST_S}, "for now"
        doubtful.close("one")
        doubtful = CostTable(Key({"device": "x"}, {}), Database(tmp_path / "b"), 1, graphs=False)


def test_batches_come_first_in_each_way_and_what_is_fused_comes_last(tmp_path: Path) -> None:
    ways = []
    for lanes in (0, 2):
        engine = Engine(records=False)
        ways.append((engine, CostTable(Key({"device": "x"}, {}), Database(tmp_path / "a"), 1, False, lanes)))
        for name in ("one", "two"):
            ways[-1][1].open(name, BrightModel(name), f"cut of {name}")
    measurer = CostMeasurer(ways, clock(0.01).__next__)  # type: ignore[arg-type]
    order = []
    measurer.begin_anew(RULES)
    while (measurement := measurer.pick()) is not None:
        while not measurer.step(measurement):
            pass
        order.append(([table for _, table in ways].index(measurement.table), len(measurement.combination)))
        assert measurer.conclude(measurement)
    assert order == [(0, 1), (0, 1), (1, 1), (1, 1), (0, 2), (0, 2)]
    (_, whole), (_, lane) = ways
    assert len(whole.costs().fused_s) == 2
    assert lane.costs().fused_s == {}
    again = CostTable(Key({"device": "x"}, {}), Database(tmp_path / "a"), 1, graphs=False, lanes=3)
    again.recall(BrightModel("one"))
    again.open("one", BrightModel("one"), "cut of one")
    assert not again.is_ready("one"), "neither all cores nor two lanes tell of three"


def test_what_is_known_is_rehearsed_where_it_is_recorded(table: CostTable) -> None:
    for size in (1, 2):
        table.note((("one", size),), [0.001])
    engine = Engine(records=True)
    measurer = measure(engine, table)
    run(measurer)
    run(measurer)
    assert [counts["one"] for counts in engine.ran] == [1, 1, 2, 2]
    assert engine.prepared == [{"one": 1}, {"one": 2}]
    assert table.costs().alone_s["one"] == {1: 0.001, 2: 0.001}


@pytest.fixture
def three(tmp_path: Path) -> CostTable:
    """Two small models that gain from being one execution, and a large one; all is known."""
    found = CostTable(Key({"device": "x"}, {}), Database(tmp_path / "a"), 2, graphs=True)
    for name, idle in (("one", 1), ("two", 1), ("big", 1000)):
        found.open(name, BrightModel(name, idle), name)
        for size in (1, 2):
            found.note(((name, size),), [0.001 * size**0.5])
    for size in (1, 2):
        found.note((("one", size), ("two", size)), [0.001 * size**0.5])
    return found


def test_what_the_scheduler_may_make_one_execution_is_recorded_ahead(three: CostTable) -> None:
    engine = Engine(records=True)
    run(measure(engine, three))
    assert [found for found in engine.prepared if len(found) == 2] == [
        {"one": 1, "two": 1}, {"one": 2, "two": 2}, {"one": 1, "two": 2}, {"one": 2, "two": 1}
    ]  # fmt: skip
    assert engine.graphs is not None
    short = Engine(records=True)
    short.graphs.room = 1  # type: ignore[union-attr]
    run(measure(short, three))
    assert [found for found in short.prepared if len(found) == 2] == [{"one": 1, "two": 1}, {"one": 2, "two": 2}]
    assert sum(len(found) == 1 for found in short.prepared) == 6


def test_what_is_wanted_is_recorded_at_rest_alone(three: CostTable) -> None:
    engine = Engine(records=True)
    measurer = measure(engine, three)
    run(measurer)
    engine.prepared.clear()
    assert engine.graphs is not None
    engine.graphs.wanted = ("gone", 1), ("one", 4)
    assert measurer.pick(at_rest=True) is None
    engine.graphs.wanted = ("one", 4), ("two", 1)
    assert measurer.pick() is None
    measurement = measurer.pick(at_rest=True)
    assert measurement is not None
    assert measurer.done
    while not measurer.step(measurement):
        pass
    assert measurer.conclude(measurement)
    assert engine.prepared == [{"one": 4, "two": 1}]
    assert len(three.costs().fused_s) == 2


def test_what_cannot_be_recorded_at_rest_is_served_as_before(three: CostTable) -> None:
    engine = Engine(records=True)
    measurer = measure(engine, three)
    run(measurer)
    assert engine.graphs is not None
    engine.graphs.wanted, engine.fails_at = (("one", 1),), 1
    measurement = measurer.pick(at_rest=True)
    assert measurement is not None
    assert measurer.step(measurement)
    assert measurer.conclude(measurement)
    assert str(measurement.failure) == "no memory"
    assert not three.failed("one")


def test_what_fails_is_left_out(table: CostTable) -> None:
    engine = Engine(records=False)
    engine.fails_at = 2
    run(measure(engine, table))
    assert list(table.costs().alone_s["one"]) == [1]
    assert [counts["one"] for counts in engine.ran].count(2) == 1


def test_models_that_change_meanwhile_make_it_begin_anew(table: CostTable) -> None:
    measurer = measure(Engine(records=False), table)
    measurer.begin_anew(RULES)
    measurement = measurer.pick()
    assert measurement is not None
    table.close("one")
    measurer.begin_anew(RULES)
    while not measurer.step(measurement):
        pass
    assert not measurer.conclude(measurement)
    assert measurer.pick() is None
    assert table.costs().alone_s == {}
