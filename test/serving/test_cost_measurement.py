"""Measuring between other work, and rehearsing what is recorded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from bright import BrightModel
from torch import Tensor

from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.key import Key
from split_infer_ros.serving.cost_measurement import MOST_ROUNDS, ROUNDS, Measuring
from split_infer_ros.serving.cost_table import CostBook
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
def book(tmp_path: Path) -> CostBook:
    found = CostBook(Key({"device": "x"}, {}), Database(tmp_path / "a"), 2, graphs=False)
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


def measure(engine: Engine, book: CostBook, *lengths_s: float) -> Measuring:
    return Measuring([(engine, book)], clock(*(lengths_s or (0.01,))).__next__)  # type: ignore[list-item]


def run(measuring: Measuring) -> None:
    measuring.begin_anew(RULES)
    while (measurement := measuring.pick()) is not None:
        if measuring.step(measurement):
            assert measuring.conclude(measurement)


def test_each_step_is_one_execution(book: CostBook) -> None:
    engine = Engine(records=False)
    measuring = measure(engine, book)
    assert measuring.done
    run(measuring)
    assert measuring.done
    assert [counts["one"] for counts in engine.ran] == [1] * (ROUNDS + 2) + [2] * (ROUNDS + 2)
    assert sorted(book.costs().alone_s["one"]) == [1, 2]
    run(measuring)
    assert len(engine.ran) == 2 * (ROUNDS + 2)


def test_samples_that_disagree_are_more_and_what_stays_in_doubt_is_measured_anew_another_day(
    tmp_path: Path, book: CostBook
) -> None:
    book.most = 1
    engine = Engine(records=False)
    run(measure(engine, book, *(FAST_S * times for times in (1, 1, 1, 2, 2, 1, 1))))
    assert len(engine.ran) == 2 + 5, "the median is as fast as the fastest after five"
    assert book.costs().alone_s["one"] == {1: FAST_S}
    book.close("one")
    doubtful = CostBook(Key({"device": "x"}, {}), Database(tmp_path / "b"), 1, graphs=False)
    for _ in range(2):
        doubtful.recall(BrightModel("one"))
        doubtful.open("one", BrightModel("one"), "x")
        assert not doubtful.is_ready("one")
        engine = Engine(records=False)
        run(measure(engine, doubtful, FAST_S, 2 * FAST_S, 2 * FAST_S))
        assert len(engine.ran) == 2 + MOST_ROUNDS
        assert doubtful.costs().alone_s["one"] == {1: 2 * FAST_S}, "for now"
        doubtful.close("one")
        doubtful = CostBook(Key({"device": "x"}, {}), Database(tmp_path / "b"), 1, graphs=False)


def test_batches_come_first_in_each_way_and_what_is_fused_comes_last(tmp_path: Path) -> None:
    ways = []
    for lanes in (0, 2):
        engine = Engine(records=False)
        ways.append((engine, CostBook(Key({"device": "x"}, {}), Database(tmp_path / "a"), 1, False, lanes)))
        for name in ("one", "two"):
            ways[-1][1].open(name, BrightModel(name), f"cut of {name}")
    measuring = Measuring(ways, clock(0.01).__next__)  # type: ignore[arg-type]
    order = []
    measuring.begin_anew(RULES)
    while (measurement := measuring.pick()) is not None:
        while not measuring.step(measurement):
            pass
        order.append(([book for _, book in ways].index(measurement.book), len(measurement.combination)))
        assert measuring.conclude(measurement)
    assert order == [(0, 1), (0, 1), (1, 1), (1, 1), (0, 2), (0, 2)]
    (_, whole), (_, lane) = ways
    assert len(whole.costs().fused_s) == 2
    assert lane.costs().fused_s == {}
    again = CostBook(Key({"device": "x"}, {}), Database(tmp_path / "a"), 1, graphs=False, lanes=3)
    again.recall(BrightModel("one"))
    again.open("one", BrightModel("one"), "cut of one")
    assert not again.is_ready("one"), "neither all cores nor two lanes tell of three"


def test_what_is_known_is_rehearsed_where_it_is_recorded(book: CostBook) -> None:
    for size in (1, 2):
        book.note((("one", size),), [0.001])
    engine = Engine(records=True)
    measuring = measure(engine, book)
    run(measuring)
    run(measuring)
    assert [counts["one"] for counts in engine.ran] == [1, 1, 2, 2]
    assert engine.prepared == [{"one": 1}, {"one": 2}]
    assert book.costs().alone_s["one"] == {1: 0.001, 2: 0.001}


@pytest.fixture
def three(tmp_path: Path) -> CostBook:
    """Two small models that gain from being one execution, and a large one; all is known."""
    found = CostBook(Key({"device": "x"}, {}), Database(tmp_path / "a"), 2, graphs=True)
    for name, idle in (("one", 1), ("two", 1), ("big", 1000)):
        found.open(name, BrightModel(name, idle), name)
        for size in (1, 2):
            found.note(((name, size),), [0.001 * size**0.5])
    for size in (1, 2):
        found.note((("one", size), ("two", size)), [0.001 * size**0.5])
    return found


def test_what_the_scheduler_may_make_one_execution_is_recorded_ahead(three: CostBook) -> None:
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


def test_what_is_wanted_is_recorded_at_rest_alone(three: CostBook) -> None:
    engine = Engine(records=True)
    measuring = measure(engine, three)
    run(measuring)
    engine.prepared.clear()
    assert engine.graphs is not None
    engine.graphs.wanted = ("gone", 1), ("one", 4)
    assert measuring.pick(at_rest=True) is None
    engine.graphs.wanted = ("one", 4), ("two", 1)
    assert measuring.pick() is None
    measurement = measuring.pick(at_rest=True)
    assert measurement is not None
    assert measuring.done
    while not measuring.step(measurement):
        pass
    assert measuring.conclude(measurement)
    assert engine.prepared == [{"one": 4, "two": 1}]
    assert len(three.costs().fused_s) == 2


def test_what_cannot_be_recorded_at_rest_is_served_as_before(three: CostBook) -> None:
    engine = Engine(records=True)
    measuring = measure(engine, three)
    run(measuring)
    assert engine.graphs is not None
    engine.graphs.wanted, engine.fails_at = (("one", 1),), 1
    measurement = measuring.pick(at_rest=True)
    assert measurement is not None
    assert measuring.step(measurement)
    assert measuring.conclude(measurement)
    assert str(measurement.failure) == "no memory"
    assert not three.failed("one")


def test_what_fails_is_left_out(book: CostBook) -> None:
    engine = Engine(records=False)
    engine.fails_at = 2
    run(measure(engine, book))
    assert list(book.costs().alone_s["one"]) == [1]
    assert [counts["one"] for counts in engine.ran].count(2) == 1


def test_models_that_change_meanwhile_make_it_begin_anew(book: CostBook) -> None:
    measuring = measure(Engine(records=False), book)
    measuring.begin_anew(RULES)
    measurement = measuring.pick()
    assert measurement is not None
    book.close("one")
    measuring.begin_anew(RULES)
    while not measuring.step(measurement):
        pass
    assert not measuring.conclude(measurement)
    assert measuring.pick() is None
    assert book.costs().alone_s == {}
