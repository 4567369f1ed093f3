"""The records through which the two sides of a shared pool exchange slots' states."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from split_infer_ros.buffers.segment import PAGE, Segment
from split_infer_ros.buffers.slot_table import NOTHING_YET, SharedState, SlotRecord, SlotTable
from split_infer_ros.buffers.slots import Outcome

SLOTS = 70  # their records fill more than a page


@pytest.fixture
def owner(folder: Path) -> Segment:
    return Segment.create(SLOTS, 300, 7)


records = st.builds(
    SlotRecord,
    st.sampled_from(SharedState),
    st.integers(0, 2**64 - 1),
    st.builds(
        Outcome,
        st.integers(0, 2**32 - 1),
        st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=24),
        st.floats(allow_nan=False),
        st.floats(allow_nan=False),
        st.floats(allow_nan=False),
    ),
)


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(written=st.dictionaries(st.integers(0, SLOTS - 1), records, max_size=5))
def test_each_side_reads_what_the_other_writes(owner: Segment, written: dict[int, SlotRecord]) -> None:
    here, there = SlotTable(owner), SlotTable(Segment.attach(owner.name))
    for slot, record in written.items():
        here.write(slot, record)
    for slot, record in written.items():
        assert there.read(slot) == record


def test_a_write_shows_the_old_state_or_the_new_one(owner: Segment) -> None:
    table, steps = SlotTable(owner), []

    class Watched:
        """The segment's bytes, with a snapshot after each write, as a process that dies then would leave them."""

        def __setitem__(self, place: slice, value: bytes) -> None:
            owner.data[place] = value
            steps.append(table.read(1).state)

    table.write(1, SlotRecord(SharedState.READING, 7))
    watched: Any = SimpleNamespace(data=Watched())
    SlotTable(watched).write(1, SlotRecord(SharedState.DONE, 7, Outcome(1, "head_error", 1.0, 2.0, 3.0)))
    assert steps == [SharedState.READING, SharedState.DONE]
    assert table.read(1) == SlotRecord(SharedState.DONE, 7, Outcome(1, "head_error", 1.0, 2.0, 3.0))


def test_a_new_table_is_free_and_overlaps_nothing(owner: Segment) -> None:
    table = SlotTable(owner)
    for slot in range(SLOTS):
        assert (table.read(slot).state, table.read(slot).generation) == (SharedState.FREE, 0)
    for slot in range(SLOTS):
        owner.slot(slot)[:] = 300 * b"\xff"
    for slot in range(SLOTS):
        table.write(slot, SlotRecord(SharedState.DONE, slot, Outcome(slot, "head_error", 1.0, 2.0, 3.0)))
    assert [table.read(slot).generation for slot in range(SLOTS)] == list(range(SLOTS))
    assert {bytes(owner.slot(slot)) for slot in range(SLOTS)} == {300 * b"\xff"}
    Segment.attach(owner.name)  # its header is whole


def test_an_untimed_outcome_stays_untimed(owner: Segment) -> None:
    table = SlotTable(owner)
    table.write(0, SlotRecord(SharedState.READY, 1, NOTHING_YET))
    assert math.isnan(table.read(0).outcome.head_start)
    assert math.isnan(table.read(0).outcome.head_end)
    assert math.isnan(table.read(0).outcome.delivered)


def test_a_long_reason_is_truncated_readably(owner: Segment) -> None:
    table = SlotTable(owner)
    table.write(0, SlotRecord(SharedState.DONE, 1, Outcome(0, 30 * "x")))
    table.write(1, SlotRecord(SharedState.DONE, 1, Outcome(0, "x" + 30 * "é")))  # cut within a letter
    assert table.read(0).outcome.reason == 24 * "x"
    assert table.read(1).outcome.reason.startswith("x" + 11 * "é")


@pytest.mark.parametrize("state", [5, 77, 2**32 - 1])
def test_an_unknown_state_is_damaged(owner: Segment, state: int) -> None:
    table = SlotTable(owner)
    table.write(0, SlotRecord(SharedState.READY, 3))
    struct.pack_into("<I", owner.data, PAGE, state)
    assert table.read(0).state is SharedState.DAMAGED
    assert table.read(0).generation == 3
