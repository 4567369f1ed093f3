"""The split point is chosen and moved, with a stage that only records its settings and with simulated times."""

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
from split_infer_ros.server.auto_split import AutoSplit
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.fusion_kind import FusionKind
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.split_chooser import AUTO, BATCH_SIZES, SplitChooser
from split_infer_ros.server.timeline import Timeline
from split_infer_ros.split.planner import Goal, Objective
from split_infer_ros.split.profile import Profile, ProfilePoint, StageContention
from split_infer_ros.telemetry.heat import Processor

# Seconds an image. The middle is best; once the head is four times slower, the late split point is.
BACKBONE = {"early": 0.010, "middle": 0.020, "late": 0.030}
HEAD = {"early": 0.040, "middle": 0.018, "late": 0.001}
BATCH_S = 0.001  # what a batch costs besides its images
OPEN = StageSettings(split_point=AUTO, batch_size=0)
THROUGHPUT = Goal(Objective.THROUGHPUT)


def profile(sizes: Sequence[int]) -> Profile:
    points = tuple(
        ProfilePoint(
            split_point=split_point,
            batch_size=size,
            bytes_per_image=1,
            preprocess_s=0.0,
            backbone_s=BATCH_S + size * BACKBONE[split_point],
            hand_over_s=0.0,
            head_s=size * HEAD[split_point],
            decode_s=0.0,
        )
        for size in sizes
        for split_point in BACKBONE
    )
    return Profile("m", "cpu", points=points, contention=StageContention())


@dataclass
class Harness:
    """An AutoSplit and the stage that it configures.

    Attributes:
        measured: batch sizes whose profile is known.
        refuses: whether the stage refuses all settings.
        applied: all settings that the stage took.
        messages: all lines that the AutoSplit reported.
        requests: batch sizes of the profiles that were asked for, and whether they might be measured.
        now: seconds.
        more_sizes: batch sizes that are profiled and not chosen.
    """

    measured: set[int] = field(default_factory=set)
    refuses: bool = False
    applied: list[StageSettings] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    requests: list[tuple[tuple[int, ...], bool]] = field(default_factory=list)
    now: float = 0.0
    more_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        find, say, default = self.find, self.messages.append, "early"
        chooser = SplitChooser("cpu", find, dwell_s=1.0, default=default, more_sizes=self.more_sizes)
        self.split = AutoSplit(chooser, say)
        self.split.attach(self.configure)

    def find(self, sizes: Sequence[int], may_measure: bool) -> Profile:
        self.requests.append((tuple(sizes), may_measure))
        if not may_measure and not self.measured >= set(sizes):
            raise ConfigurationError("m was not measured.")
        self.measured |= set(sizes)
        return profile(sizes)

    def configure(self, settings: StageSettings) -> None:
        if self.refuses:
            raise ConfigurationError("The memory is full.")
        self.applied.append(settings)

    def run(
        self,
        settings: StageSettings,
        seconds: float,
        head_slower: float = 1.0,
        fill: int | None = None,
        fusion: FusionKind = FusionKind.NONE,
        num_lanes: int = 1,
        is_contested: bool = False,
    ) -> None:
        """Lets batches come back for some seconds, at the pace of the slower stage.

        Args:
            settings: with which they run.
            seconds: for how long.
            head_slower: how many times slower the head is than in the profile.
            fill: images in each batch; None if they are full.
            fusion: of each batch with others.
            num_lanes: side by side, each of which takes so many times longer.
            is_contested: whether two plans take turns meanwhile.
        """
        split_point, size = settings.split_point, fill or settings.batch_size
        backbone_s, head_s = BATCH_S + size * BACKBONE[split_point], size * HEAD[split_point] * head_slower
        end = self.now + seconds
        while self.now < end:
            self.now += max(backbone_s, head_s)
            start = self.now - backbone_s - head_s
            begin = start - (num_lanes - 1) * backbone_s
            times = Timeline(begin, begin, begin, start + backbone_s, start + backbone_s)
            times.head_start, times.head_end, times.delivered = start + backbone_s, self.now, self.now
            batch = SimpleNamespace(
                plan=SimpleNamespace(settings=settings),
                frames=[None] * size,
                timeline=times,
                fusion=fusion,
                num_lanes=num_lanes,
                is_contested=is_contested,
            )
            self.split.observe(cast(Batch, batch))


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    harness.split.stop()


def settle(harness: Harness) -> None:
    """Waits until all batches have been examined: the thread does so before it ends."""
    harness.split.stop()
    harness.split.start()


@given(size=st.integers(0, 256), split_point=st.sampled_from(["default", "output", "nowhere"]))
def test_a_named_split_point_stays_with_batch_size_one(size: int, split_point: str) -> None:
    harness = Harness()
    requested = StageSettings(split_point=split_point, batch_size=size, pool_slots=3)
    settings = harness.split.begin(requested, THROUGHPUT)
    assert settings.split_point == ("early" if split_point == "default" else split_point), "what tuning found"
    assert (settings.batch_size, settings.pool_slots) == (size or 1, 3)
    assert harness.requests == []


def test_the_planner_fills_in_open_settings(harness: Harness) -> None:
    settings = harness.split.begin(replace(OPEN, pool_slots=7), THROUGHPUT)
    assert (settings.split_point, settings.batch_size, settings.pool_slots) == ("middle", max(BATCH_SIZES["cpu"]), 7)
    settings = harness.split.begin(OPEN, Goal())
    assert (settings.split_point, settings.batch_size) == ("late", 1)
    settings = harness.split.begin(OPEN, Goal(Objective.LATENCY))
    assert (settings.split_point, settings.batch_size) == ("late", 1)
    settings = harness.split.begin(replace(OPEN, batch_size=3), Goal(Objective.THROUGHPUT, latency_bound_s=0.1))
    assert (settings.split_point, settings.batch_size) == ("late", 3)
    assert harness.messages == []


@pytest.mark.parametrize("split_point", [AUTO, "late"])
def test_no_frame_waits_for_others_if_the_batch_size_is_open(harness: Harness, split_point: str) -> None:
    requested = StageSettings(split_point=split_point, batch_size=0, batch_timeout_s=0.05)
    for _ in range(2):  # the second time it is filled in as before
        assert harness.split.begin(requested, THROUGHPUT).batch_timeout_s == 0.0
    named = replace(requested, batch_size=4)
    assert harness.split.begin(named, THROUGHPUT).batch_timeout_s == 0.05


def test_the_split_point_stays_where_turns_put_it_until_the_stages_drift(harness: Harness) -> None:
    requested = replace(OPEN, batch_size=4)
    harness.split.begin(requested, THROUGHPUT)
    request = harness.split.open_request
    assert request is not None
    choices = harness.split.replan(harness.find, request)
    late = next(choice for choice in choices if choice.split_point == "late")
    harness.split.settle(late, request)
    (won,) = harness.applied
    assert harness.split.settings == won == replace(won, split_point="late", batch_size=4)
    harness.split.start()
    harness.run(won, 20)
    settle(harness)
    assert harness.applied == [won], "the profile says middle"
    harness.split.configure(replace(requested, pool_slots=9), THROUGHPUT)
    assert harness.applied[1:] == [replace(won, pool_slots=9)]


def test_the_default_split_point_and_the_whole_model_are_compared_whatever_the_profile_says() -> None:
    sizes = BATCH_SIZES["cpu"]
    found = profile(sizes)
    whole = [
        replace(found.points[0], split_point="output", batch_size=size, backbone_s=1.0, head_s=0.0) for size in sizes
    ]
    found = replace(found, points=(*found.points, *whole))
    chooser = SplitChooser("cpu", lambda sizes, may_measure: found, dwell_s=1.0, default="early")

    def last_two(batch_size: int, goal: Goal) -> list[tuple[str, int]]:
        _, choices = chooser.replan(lambda sizes, may_measure: found, (AUTO, batch_size, goal))
        return [(choice.split_point, choice.batch_size) for choice in choices[-2:]]

    assert last_two(2, THROUGHPUT) == [("early", 2), ("output", 2)]
    assert last_two(0, THROUGHPUT) == [("early", max(sizes)), ("output", max(sizes))]
    assert last_two(0, Goal(Objective.LATENCY)) == [("early", 1), ("output", 1)]


def test_what_turns_found_for_an_earlier_request_is_ignored(harness: Harness) -> None:
    harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    request = harness.split.open_request
    assert request is not None
    (choice, *_) = harness.split.replan(harness.find, request)
    harness.split.configure(StageSettings(split_point="early"), THROUGHPUT)
    before = harness.split.settings
    harness.split.settle(choice, request)
    assert harness.split.replan(harness.find, request) == []
    assert harness.split.settings == before
    assert harness.split.open_request is None


def test_a_bound_that_no_split_point_keeps_is_reported(harness: Harness) -> None:
    settings = harness.split.begin(OPEN, Goal(Objective.THROUGHPUT, latency_bound_s=0.005))
    assert (settings.split_point, settings.batch_size) == ("late", 1)
    assert harness.messages == [
        "No split point of m keeps within 5 ms on this machine; the one of the lowest latency is taken, 32.0 ms."
    ]


def test_nothing_is_measured_while_frames_flow(harness: Harness) -> None:
    harness.split.begin(StageSettings(), THROUGHPUT)
    with pytest.raises(ConfigurationError, match="not measured"):
        harness.split.configure(OPEN, THROUGHPUT)
    assert harness.requests == [(BATCH_SIZES["cpu"], False)]
    assert harness.applied == []
    harness.measured = set(BATCH_SIZES["cpu"])
    harness.split.configure(OPEN, THROUGHPUT)
    assert [(settings.split_point, settings.batch_size) for settings in harness.applied] == [("middle", 8)]


def test_a_slower_head_moves_the_split_point_for_good(harness: Harness) -> None:
    requested = replace(OPEN, batch_size=4)
    first = harness.split.begin(requested, THROUGHPUT)
    harness.split.start()
    harness.run(first, 10)
    settle(harness)
    assert harness.applied == []
    harness.run(first, 20, head_slower=4)
    settle(harness)
    moved = replace(first, split_point="late")
    assert harness.applied == [moved]
    assert harness.messages == [
        "The split point moves from middle at batch size 4 to late at 4: 33.1 images/s are expected, 136.9 ms."
    ]
    harness.run(moved, 20, head_slower=4)
    harness.split.configure(replace(requested, pool_slots=9), THROUGHPUT)
    settle(harness)
    assert harness.applied == [moved, replace(moved, pool_slots=9)]


def test_a_new_goal_is_planned_again(harness: Harness) -> None:
    harness.split.begin(OPEN, THROUGHPUT)
    harness.split.configure(OPEN, Goal(Objective.LATENCY))
    harness.split.configure(StageSettings(split_point="early", batch_size=2), Goal(Objective.LATENCY))
    harness.split.configure(StageSettings(split_point="early", batch_size=0), Goal(Objective.LATENCY))
    assert [(settings.split_point, settings.batch_size) for settings in harness.applied] == [
        ("late", 1),
        ("early", 2),
        ("early", 1),
    ]


@pytest.mark.parametrize(
    "change",
    [lambda harness: harness.run(StageSettings(split_point="early", batch_size=4), 20, 4), lambda harness: None],
)
def test_partial_and_outdated_batches_are_ignored(harness: Harness, change: Callable[[Harness], Any]) -> None:
    first = harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    harness.split.start()
    change(harness)
    harness.run(first, 20, head_slower=4, fill=3)
    settle(harness)
    assert harness.applied == []


@pytest.mark.parametrize("fill", [1, 2, 3])
def test_smaller_batches_move_it_if_their_size_is_profiled(fill: int) -> None:
    harness = Harness(more_sizes=(1,))
    first = harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    assert harness.requests == [((1, 4), True)]
    assert first.batch_size == 4
    harness.split.start()
    harness.run(first, 20, fill=fill)
    settle(harness)
    assert harness.applied == []
    harness.run(first, 20, head_slower=4, fill=fill)
    settle(harness)
    harness.split.stop()
    assert harness.applied == [replace(first, split_point="late")]


@pytest.mark.parametrize(
    "told", [{"fusion": FusionKind.FUSED}, {"fusion": FusionKind.STACKED}, {"is_contested": True}], ids=str
)
def test_batches_computed_with_others_or_in_a_contest_show_no_drift(harness: Harness, told: dict[str, Any]) -> None:
    first = harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    harness.split.start()
    harness.run(first, 20, head_slower=4, **told)
    settle(harness)
    assert harness.applied == []


def test_lanes_do_not_make_the_backbone_look_slow(harness: Harness) -> None:
    first = harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    harness.split.start()
    harness.run(first, 20, num_lanes=4)
    settle(harness)
    assert harness.applied == []


def test_filled_in_settings_count_only_once_adopted(harness: Harness) -> None:
    harness.split.begin(StageSettings(split_point="late"), THROUGHPUT)
    filled = harness.split.fill_in(OPEN, Goal(Objective.THROUGHPUT, latency_bound_s=0.005), may_measure=True)
    assert harness.messages == harness.applied == []
    harness.split.configure(StageSettings(split_point="late", pool_slots=2), THROUGHPUT)
    harness.split.adopt(filled)
    assert len(harness.messages) == 1
    again = harness.split.fill_in(OPEN, Goal(Objective.THROUGHPUT, latency_bound_s=0.005))
    assert (again.settings, again.note) == (filled.settings, "")


def test_a_stage_that_was_forgotten_is_not_moved(harness: Harness) -> None:
    first = harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    harness.split.start()
    harness.split.detach()
    harness.run(first, 20, head_slower=4)
    settle(harness)
    assert harness.applied == harness.messages == []


def test_a_refused_move_is_reported_once_and_not_retried(harness: Harness) -> None:
    first = harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    harness.split.start()
    harness.refuses = True
    harness.run(first, 40, head_slower=4)
    settle(harness)
    assert harness.messages == ["The split point stays at middle: The memory is full."]
    assert harness.applied == []
    harness.refuses = False
    harness.split.configure(replace(OPEN, batch_size=4, pool_slots=2), THROUGHPUT)
    assert [settings.split_point for settings in harness.applied] == ["middle"]


def test_refused_settings_change_nothing(harness: Harness) -> None:
    first = harness.split.begin(replace(OPEN, batch_size=4), THROUGHPUT)
    harness.refuses = True
    with pytest.raises(ConfigurationError, match="memory is full"):
        harness.split.configure(StageSettings(split_point="early", batch_size=2), THROUGHPUT)
    harness.refuses = False
    harness.split.start()
    harness.run(first, 20, head_slower=4)
    settle(harness)
    assert [settings.split_point for settings in harness.applied] == ["late"], "it no longer watches"


def test_settings_cannot_change_without_a_stage() -> None:
    split = AutoSplit(SplitChooser("cpu", lambda sizes, _: profile(sizes), dwell_s=1.0), print)
    split.begin(StageSettings(), THROUGHPUT)
    with pytest.raises(ConfigurationError, match="no stage yet"):
        split.configure(StageSettings(split_point="early"), Goal(Objective.THROUGHPUT, latency_bound_s=math.inf))


def test_in_heat_the_split_point_does_not_follow_the_stages(harness: Harness) -> None:
    harness.measured = set(BATCH_SIZES["cpu"])
    harness.split.begin(OPEN, THROUGHPUT)
    request = harness.split.open_request
    assert request is not None
    before = harness.split.settings
    harness.split.start()
    for hot, stays in ((Processor.CPU, True), (None, False)):
        harness.split.hold(hot is not None)
        harness.split.replan(harness.find, request, hot)
        harness.run(before, 20, head_slower=20.0)
        settle(harness)
        assert (harness.split.settings == before) is stays
