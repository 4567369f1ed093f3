"""The split point as it is chosen and moved: against a stage that only notes what it was told, with times made by
hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.pipeline.auto_split import AUTO, BATCH_SIZES, AutoSplit, Goal
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.settings import StageSettings
from split_infer_ros.pipeline.timeline import Timeline
from split_infer_ros.split.planner import LATENCY
from split_infer_ros.split.profile import CoRun, Profile, ProfilePoint

# seconds an image: the middle is best, and where the head is four times slower, the end
BACKBONE = {"early": 0.010, "middle": 0.020, "late": 0.030}
HEAD = {"early": 0.040, "middle": 0.018, "late": 0.001}
FULL_BATCH_S = 0.001  # what a batch costs beside its images
OPEN = StageSettings(split_point=AUTO, batch_size=0)


def profile(sizes: Sequence[int]) -> Profile:
    points = tuple(
        ProfilePoint(
            split_point, size, 1, 0.0, FULL_BATCH_S + size * BACKBONE[split_point], 0.0, size * HEAD[split_point], 0.0
        )
        for size in sizes
        for split_point in BACKBONE
    )
    return Profile("m", "cpu", points, CoRun())


@dataclass
class House:
    """An AutoSplit, and the stage that it tells what to do."""

    known: set[int] = field(default_factory=set)
    full: bool = False
    told: list[StageSettings] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    asked: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.split = AutoSplit("cpu", self.find, self.said.append, dwell_s=1.0)
        self.split.attach(self.configure)

    def find(self, sizes: Sequence[int], may_measure: bool) -> Profile:
        self.asked.append((tuple(sizes), may_measure))
        if not may_measure and not self.known >= set(sizes):
            raise ConfigurationError("m was not measured.")
        self.known |= set(sizes)
        return profile(sizes)

    def configure(self, settings: StageSettings) -> None:
        if self.full:
            raise ConfigurationError("The memory is full.")
        self.told.append(settings)

    def run(self, settings: StageSettings, seconds: float, head_slower: float = 1.0, fill: int | None = None) -> None:
        """Batches come back for so long, as fast as their stages take."""
        split_point, size = settings.split_point, settings.batch_size
        backbone_s, head_s = FULL_BATCH_S + size * BACKBONE[split_point], size * HEAD[split_point] * head_slower
        end = self.now + seconds
        while self.now < end:
            self.now += max(backbone_s, head_s)
            start = self.now - backbone_s - head_s
            times = Timeline(start, start, start, start + backbone_s, start + backbone_s)
            times.head_start, times.head_end, times.delivered = start + backbone_s, self.now, self.now
            plan = SimpleNamespace(settings=settings)
            self.split.observe(
                cast(InFlightBatch, SimpleNamespace(plan=plan, frames=[None] * (fill or size), timeline=times))
            )


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.split.stop()


def settle(house: House) -> None:
    """What was seen is looked at before the thread ends."""
    house.split.stop()
    house.split.start()


@given(size=st.integers(0, 256), split_point=st.sampled_from(["default", "output", "nowhere"]))
def test_a_cut_that_is_named_is_left_alone_and_an_open_batch_size_is_one(size: int, split_point: str) -> None:
    house = House()
    wanted = StageSettings(split_point, size, pool_slots=3)
    assert house.split.begin(wanted, Goal()) == replace(wanted, batch_size=size or 1)
    assert house.asked == []


def test_what_is_left_open_is_the_planners(house: House) -> None:
    settings = house.split.begin(replace(OPEN, pool_slots=7), Goal())
    assert (settings.split_point, settings.batch_size, settings.pool_slots) == ("middle", max(BATCH_SIZES["cpu"]), 7)
    settings = house.split.begin(OPEN, Goal(LATENCY))
    assert (settings.split_point, settings.batch_size) == ("late", 1)
    settings = house.split.begin(replace(OPEN, batch_size=3), Goal(latency_bound_s=0.1))
    assert (settings.split_point, settings.batch_size) == ("late", 3)
    assert house.said == []


def test_a_bound_that_no_cut_keeps_is_said(house: House) -> None:
    settings = house.split.begin(OPEN, Goal(latency_bound_s=0.005))
    assert (settings.split_point, settings.batch_size) == ("late", 1)
    assert house.said == [
        "No split point of m keeps within 5 ms on this machine; the one of the lowest latency is taken, 32.0 ms."
    ]


def test_nothing_is_measured_while_frames_flow(house: House) -> None:
    house.split.begin(StageSettings(), Goal())
    with pytest.raises(ConfigurationError, match="not measured"):
        house.split.configure(OPEN, Goal())
    assert house.asked == [(BATCH_SIZES["cpu"], False)]
    assert house.told == []
    house.known = set(BATCH_SIZES["cpu"])
    house.split.configure(OPEN, Goal())
    assert [(told.split_point, told.batch_size) for told in house.told] == [("middle", 8)]


def test_where_the_head_becomes_slower_the_cut_moves_and_other_changes_leave_it_there(house: House) -> None:
    wanted = replace(OPEN, batch_size=4)
    first = house.split.begin(wanted, Goal())
    house.split.start()
    house.run(first, 10)
    settle(house)
    assert house.told == []
    house.run(first, 20, head_slower=4)
    settle(house)
    moved = replace(first, split_point="late")
    assert house.told == [moved]
    assert house.said == [
        "The split point moves from middle at batch size 4 to late at 4: 33.1 images/s are expected, 136.9 ms."
    ]
    house.run(moved, 20, head_slower=4)
    house.split.configure(replace(wanted, pool_slots=9), Goal())
    settle(house)
    assert house.told == [moved, replace(moved, pool_slots=9)]


def test_what_other_goals_ask_for_is_planned_anew(house: House) -> None:
    house.split.begin(OPEN, Goal())
    house.split.configure(OPEN, Goal(LATENCY))
    house.split.configure(StageSettings("early", 2), Goal(LATENCY))
    house.split.configure(StageSettings("early", 0), Goal(LATENCY))
    assert [(told.split_point, told.batch_size) for told in house.told] == [("late", 1), ("early", 2), ("early", 1)]


@pytest.mark.parametrize("change", [lambda h: h.run(StageSettings("early", 4), 20, 4), lambda h: None])
def test_batches_of_other_settings_and_unfilled_ones_tell_nothing(house: House, change: Callable[[House], Any]) -> None:
    first = house.split.begin(replace(OPEN, batch_size=4), Goal())
    house.split.start()
    change(house)
    house.run(first, 20, head_slower=4, fill=3)
    settle(house)
    assert house.told == []


def test_a_move_that_cannot_be_made_is_said_once_and_not_tried_again(house: House) -> None:
    first = house.split.begin(replace(OPEN, batch_size=4), Goal())
    house.split.start()
    house.full = True
    house.run(first, 40, head_slower=4)
    settle(house)
    assert house.said == ["The split point stays at middle: The memory is full."]
    assert house.told == []
    house.full = False
    house.split.configure(replace(OPEN, batch_size=4, pool_slots=2), Goal())
    assert [told.split_point for told in house.told] == ["middle"]


def test_what_the_stage_refuses_changes_nothing(house: House) -> None:
    first = house.split.begin(replace(OPEN, batch_size=4), Goal())
    house.full = True
    with pytest.raises(ConfigurationError, match="memory is full"):
        house.split.configure(StageSettings("early", 2), Goal())
    house.full = False
    house.split.start()
    house.run(first, 20, head_slower=4)
    settle(house)
    assert [told.split_point for told in house.told] == ["late"], "it no longer watches"


def test_before_there_is_a_stage_nothing_can_be_changed() -> None:
    split = AutoSplit("cpu", lambda sizes, _: profile(sizes), print, dwell_s=1.0)
    split.begin(StageSettings(), Goal())
    with pytest.raises(ConfigurationError, match="no stage yet"):
        split.configure(StageSettings("early"), Goal(latency_bound_s=math.inf))
