"""Measuring between other work, and rehearsing what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from bright import BrightModel
from torch import Tensor

from split_infer_ros.tenancy.cost_book import CostBook
from split_infer_ros.tenancy.measuring import ROUNDS, Measuring
from split_infer_ros.tuning.database import Database
from split_infer_ros.tuning.key import Key


class Engine:
    """One that records, or not, and may fail."""

    def __init__(self, records: bool) -> None:
        self.records = records
        self.ran: list[dict[str, int]] = []
        self.fails_at = 0

    def run(self, inputs: Mapping[str, Tensor]) -> None:
        self.ran.append({name: len(images) for name, images in inputs.items()})
        if max(map(len, inputs.values())) == self.fails_at:
            raise RuntimeError("no memory")


@pytest.fixture
def book(tmp_path: Path) -> CostBook:
    found = CostBook(Key({"device": "x"}, {}), Database(tmp_path / "a"), 2, graphs=False)
    found.open("one", BrightModel("one"), "x")
    return found


def run(measuring: Measuring) -> None:
    measuring.begin_anew()
    while (measurement := measuring.pick()) is not None:
        if measuring.step(measurement):
            assert measuring.conclude(measurement)


def test_each_step_is_one_execution(book: CostBook) -> None:
    engine = Engine(records=False)
    measuring = Measuring(engine, book)  # type: ignore[arg-type]
    assert measuring.done
    run(measuring)
    assert measuring.done
    assert [counts["one"] for counts in engine.ran] == [1] * (ROUNDS + 2) + [2] * (ROUNDS + 2)
    assert sorted(book.costs().alone_s["one"]) == [1, 2]
    run(measuring)
    assert len(engine.ran) == 2 * (ROUNDS + 2)


def test_what_is_known_is_rehearsed_where_it_is_recorded(book: CostBook) -> None:
    for size in (1, 2):
        book.note((("one", size),), [0.001])
    engine = Engine(records=True)
    measuring = Measuring(engine, book)  # type: ignore[arg-type]
    run(measuring)
    run(measuring)
    assert [counts["one"] for counts in engine.ran] == [1, 1, 2, 2]
    assert book.costs().alone_s["one"] == {1: 0.001, 2: 0.001}


def test_what_fails_is_left_out(book: CostBook) -> None:
    engine = Engine(records=False)
    engine.fails_at = 2
    run(Measuring(engine, book))  # type: ignore[arg-type]
    assert list(book.costs().alone_s["one"]) == [1]
    assert [counts["one"] for counts in engine.ran].count(2) == 1


def test_models_that_change_meanwhile_make_it_begin_anew(book: CostBook) -> None:
    measuring = Measuring(Engine(records=False), book)  # type: ignore[arg-type]
    measuring.begin_anew()
    measurement = measuring.pick()
    assert measurement is not None
    book.close("one")
    measuring.begin_anew()
    while not measuring.step(measurement):
        pass
    assert not measuring.conclude(measurement)
    assert measuring.pick() is None
    assert book.costs().alone_s == {}
