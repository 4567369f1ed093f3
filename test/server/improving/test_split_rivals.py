"""With split point auto, a node serves at once, measures its profile beside, and lets turns on live frames choose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

pytest.importorskip("torch")
from brightness_models import LONG_S
from proposed_rivals import Camera
from tenant_server import until
from two_stages import Stages, brightness

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.auto_split import AutoSplit
from split_infer_ros.server.improving import search, turns
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.improving.measures import CoolMeasure, GoalMeasure
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.improving.split_rivals import MAX_TRIES, SplitRivals
from split_infer_ros.server.improving.turns import Verdict
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.server.split_chooser import AUTO, SplitChooser
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import Goal, Objective
from split_infer_ros.split.profile import FindProfile, NotProfiledError, Profile, ProfilePoint, StageContention
from split_infer_ros.telemetry.heat import Processor

DEFAULT, BEST = "parts.0", "parts.1"
NAMES = "input", "parts.0", "parts.1", "parts.2", "output"
OPEN = StageSettings(split_point=AUTO, batch_size=0, drop_policy=DropPolicy.BLOCK)
GOAL = Goal(Objective.THROUGHPUT)
WON, LOST = Verdict(1.5, 1.4, 1.6), Verdict(0.9, 0.8, 0.95)
SLOW_S, FAST_S = 0.02, 0.001  # far apart, so that a busy machine does not decide


def profile(sizes: Sequence[int]) -> Profile:
    """Returns a profile by which ``output`` is best, ``parts.1`` is nearly as good, and the others are worse."""
    stages_s = dict.fromkeys(NAMES, (0.02, 0.02)) | {"output": (0.009, 0.001), BEST: (0.0095, 0.0015)}
    points = [ProfilePoint(name, size, 1, 0.0, size * stages_s[name][0], 0.0, size * stages_s[name][1], 0.0)
              for size in sizes for name in NAMES]  # fmt: skip
    return Profile("brightness", "cpu", tuple(points), StageContention())


@dataclass
class Profiles:
    """Measures a made-up profile. It is a ``BackgroundProfiles``.

    Attributes:
        asked: the batch sizes of each call.
        known: the batch sizes that are measured.
        fails: why it cannot measure; empty if it can.
        gate: called before it measures.
    """

    asked: list[list[int]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    fails: str = ""
    gate: Callable[[], object] = lambda: None
    closed: int = 0

    def find(self, model: SplitModel, batch_sizes: Sequence[int], is_over: Callable[[], bool]) -> FindProfile:
        self.asked.append(list(batch_sizes))
        self.gate()
        if self.fails:
            raise ConfigurationError(self.fails)
        self.known |= set(batch_sizes)
        return self.read

    def cost(self) -> str:
        return ""

    def read(self, sizes: Sequence[int], may_measure: bool) -> Profile:
        if not set(sizes) <= self.known:
            raise NotProfiledError("brightness was not measured.")
        return profile(sizes)

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


def auto_split(profiles: Profiles, improve: Improve = Improve.BACKGROUND, say: Any = lambda line: None) -> AutoSplit:
    return AutoSplit(SplitChooser("cpu", profiles.read, 5.0, default=DEFAULT, improve=improve), say)


def proposed(rivals: SplitRivals, split: AutoSplit) -> Rival | None:
    return rivals.next(brightness(), split.settings.split_point, lambda: False, lambda: None)


def points_tried(rivals: SplitRivals, split: AutoSplit, verdict: Verdict) -> list[tuple[str, int]]:
    found = []
    while (rival := proposed(rivals, split)) is not None:
        assert rival.settings is not None
        assert rival.model is brightness()
        found.append((rival.settings.split_point, rival.settings.batch_size))
        rivals.settle(verdict)
    return found


@pytest.mark.parametrize("improve", [Improve.BACKGROUND, Improve.NEVER])
def test_a_model_without_a_profile_is_split_at_its_default(improve: Improve) -> None:
    said: list[str] = []
    split = auto_split(Profiles(), improve, said.append)
    settings = split.begin(replace(OPEN, pool_slots=3), GOAL)
    assert (settings.split_point, settings.batch_size, settings.pool_slots) == (DEFAULT, 1, 3)
    assert split.begin(replace(OPEN, batch_size=4), GOAL).batch_size == 4
    assert said[0].startswith("The model is split at parts.0 for now. ")


def test_before_start_a_missing_profile_is_an_error_while_frames_flow() -> None:
    split = auto_split(Profiles(), Improve.BEFORE_START)
    with pytest.raises(NotProfiledError):
        split.configure(OPEN, GOAL)


def test_the_choices_of_the_profile_take_turns_until_none_is_left() -> None:
    profiles = Profiles()
    split = auto_split(profiles)
    split.attach(lambda settings: None)
    split.begin(replace(OPEN, batch_size=1), GOAL)
    rivals = SplitRivals(split, profiles)
    assert points_tried(rivals, split, LOST) == [("output", 1), (BEST, 1)]
    assert profiles.asked == [[1]]
    assert split.settings.split_point == DEFAULT
    assert rivals.summary == (
        "split point output with batch size 1 is 0.90 times as fast (0.80 to 0.95) on live frames; "
        "split point parts.1 with batch size 1 is 0.90 times as fast (0.80 to 0.95) on live frames"
    )
    rivals.close()
    assert profiles.closed == 1


def test_a_winner_is_put_in_force_and_meets_the_next_choice() -> None:
    profiles, applied = Profiles(), list[StageSettings]()
    split = auto_split(profiles)
    split.attach(applied.append)
    split.begin(OPEN, GOAL)
    tried = points_tried(SplitRivals(split, profiles), split, WON)
    assert len(tried) > 1
    assert [(settings.split_point, settings.batch_size) for settings in applied] == tried
    assert (split.settings.split_point, split.settings.batch_size) == tried[-1]


def test_the_present_choice_is_no_rival_of_itself() -> None:
    profiles = Profiles(known={1})
    split = auto_split(profiles)
    assert split.begin(replace(OPEN, batch_size=1), GOAL).split_point == "output"
    assert points_tried(SplitRivals(split, profiles), split, LOST) == [(BEST, 1), (DEFAULT, 1)]


def test_a_named_split_point_has_no_rivals() -> None:
    profiles = Profiles()
    split = auto_split(profiles)
    split.begin(replace(OPEN, split_point=BEST), GOAL)
    rivals = SplitRivals(split, profiles)
    assert proposed(rivals, split) is None
    assert (rivals.summary, profiles.asked) == ("", [])


def test_a_new_request_ends_a_contest_and_leads_to_new_choices() -> None:
    profiles = Profiles()
    split = auto_split(profiles)
    split.attach(lambda settings: None)
    split.begin(replace(OPEN, batch_size=1), GOAL)
    rivals = SplitRivals(split, profiles)
    rival = proposed(rivals, split)
    assert rival is not None
    assert rival.is_wanted()
    split.configure(replace(OPEN, split_point=DEFAULT, batch_size=1), GOAL)
    assert not rival.is_wanted()
    rivals.settle(WON)
    assert split.settings.split_point == DEFAULT, "the user's name holds"
    split.configure(replace(OPEN, batch_size=2), Goal(Objective.LATENCY))
    assert proposed(rivals, split) is not None
    assert profiles.asked == [[1], [2]]


def test_another_engine_is_profiled_anew() -> None:
    profiles = Profiles()
    split = auto_split(profiles)
    split.begin(replace(OPEN, batch_size=1), GOAL)
    rivals = SplitRivals(split, profiles)
    points_tried(rivals, split, LOST)
    other = brightness().placed(brightness().device, brightness().execution_config)
    rival = rivals.next(other, DEFAULT, lambda: False, lambda: None)
    assert rival is not None
    assert rival.model is other
    assert len(profiles.asked) == 2


def test_a_model_that_cannot_be_measured_stays_where_it_is() -> None:
    profiles = Profiles(fails="It crashed.")
    split = auto_split(profiles)
    split.begin(OPEN, GOAL)
    rivals = SplitRivals(split, profiles)
    for _ in range(2):
        assert proposed(rivals, split) is None
    assert rivals.summary == "split points are not compared (It crashed)"
    assert len(profiles.asked) == 1


def test_a_search_that_ends_during_the_measurement_measures_again_later() -> None:
    profiles = Profiles(fails="It was killed.")
    split = auto_split(profiles)
    split.begin(OPEN, GOAL)
    rivals = SplitRivals(split, profiles)
    assert rivals.next(brightness(), DEFAULT, lambda: True, lambda: None) is None
    profiles.fails = ""
    assert proposed(rivals, split) is not None
    assert rivals.summary == ""


def test_a_contest_that_others_end_is_not_repeated_for_ever() -> None:
    profiles = Profiles()
    split = auto_split(profiles)
    split.begin(replace(OPEN, batch_size=1), GOAL)
    rivals = SplitRivals(split, profiles)
    names = [rival.name for _ in range(2 * MAX_TRIES + 1) if (rival := proposed(rivals, split)) is not None]
    assert len(names) == 2 * MAX_TRIES
    assert names[0] != names[-1]
    assert rivals.summary.count("could not be compared") == 2


class AutoStages(Stages):
    """Both stages, with a split point that is ``auto``.

    Attributes:
        split: chooses the split point.
        profiles: measures the profile.
    """

    def __init__(self, profiles: Profiles, requested: StageSettings, goal: Goal = GOAL) -> None:
        self.profiles = profiles
        self.notes: list[str] = []
        self.split = auto_split(profiles, say=self.notes.append)
        settings = self.split.begin(requested, goal)
        super().__init__(settings, rivals=SplitRivals(self.split, profiles))
        self.split.attach(self.backbone.configure)


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., AutoStages]]:
    """Starts both stages with a camera. After the test, checks that each frame has its own result."""
    monkeypatch.setattr(turns, "TURN_S", 0.02)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    running: list[tuple[AutoStages, Camera]] = []

    def make(*args: Any) -> AutoStages:
        stages = AutoStages(*args)
        running.append((stages, Camera(stages)))
        return stages

    yield make
    for stages, camera in running:
        camera.finish()
        stages.close()


def slow_unless(monkeypatch: pytest.MonkeyPatch, fast: str) -> None:
    run = Plan.run

    def slower(plan: Plan, *args: Any, **options: Any) -> Any:
        time.sleep(FAST_S if plan.split_point.name == fast else SLOW_S)
        return run(plan, *args, **options)

    monkeypatch.setattr(Plan, "run", slower)


def test_frames_are_served_before_the_profile_and_turns_choose_after_it(
    auto: Callable[..., AutoStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The profile says ``output``, and frames say ``parts.1``."""
    slow_unless(monkeypatch, BEST)
    profiles = Profiles()
    served: list[int] = []
    stages = None

    def gate() -> None:
        until(lambda: stages is not None and len(stages.delivered) > 5)
        assert stages is not None
        served.extend(origin.header for origin, _ in list(stages.delivered))
        assert stages.backbone.plan.split_point.name == DEFAULT

    profiles.gate = gate
    stages = auto(profiles, replace(OPEN, batch_size=1))
    until(lambda: bool(stages.said))
    assert len(served) > 5
    assert stages.backbone.plan.split_point.name == stages.split.settings.split_point == BEST
    assert stages.said[0].startswith("brightness runs on torch from now on: split point output with batch size 1 is ")
    assert f"split point {BEST} with batch size 1 is " in stages.backbone.report(0.0).improvement
    stages.split.configure(replace(OPEN, batch_size=1, pool_slots=2), GOAL)
    assert stages.backbone.plan.split_point.name == BEST, "other settings leave it there"


def test_a_split_point_that_the_user_names_during_a_contest_holds(
    auto: Callable[..., AutoStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MIN_PAIRS", 10**6)  # no contest ends by itself
    monkeypatch.setattr(turns, "CLEARLY_SLOWER", 10**6)
    for name in (DEFAULT, "output", "parts.2"):  # the incumbent's, the rival's, another one
        stages = auto(Profiles(), replace(OPEN, batch_size=1))
        until(lambda stages=stages: stages.backbone.plan.split_point.name == "output")
        stages.split.configure(replace(OPEN, split_point=name, batch_size=1), GOAL)
        until(lambda stages=stages: not stages.backbone.instance.plans.is_holding)
        assert stages.backbone.plan.split_point.name == name
        stages.backbone.stop(LONG_S)
        assert stages.backbone.plan.split_point.name == name


def test_a_change_to_auto_while_frames_flow_begins_a_search(
    auto: Callable[..., AutoStages], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_unless(monkeypatch, BEST)
    stages = auto(Profiles(), replace(OPEN, split_point="parts.2", batch_size=1))
    until(lambda: len(stages.delivered) > 5)
    assert stages.profiles.asked == []
    stages.split.configure(replace(OPEN, batch_size=1), GOAL)
    until(lambda: bool(stages.said))
    assert stages.backbone.plan.split_point.name == BEST


def test_in_heat_the_most_sparing_choices_take_turns_and_nothing_is_measured() -> None:
    profiles = Profiles(known={1})
    split = auto_split(profiles)
    split.attach(lambda settings: None)
    split.begin(replace(OPEN, batch_size=1), Goal(Objective.THROUGHPUT, latency_bound_s=0.5))
    rivals = SplitRivals(split, profiles)
    assert points_tried(rivals, split, LOST) == [(BEST, 1), (DEFAULT, 1)]
    rivals.again(Processor.CPU)
    rival = proposed(rivals, split)
    assert rival is not None
    assert rival.measure == CoolMeasure(Processor.CPU, 0.5)
    assert profiles.asked == [[1], []]
    assert len(points_tried(rivals, split, WON)) > 0
    rivals.again(None)
    back = proposed(rivals, split)
    assert back is not None
    assert isinstance(back.measure, GoalMeasure)


def test_in_heat_a_model_without_a_profile_keeps_its_split_point() -> None:
    profiles = Profiles()
    split = auto_split(profiles)
    split.begin(replace(OPEN, batch_size=1), GOAL)
    rivals = SplitRivals(split, profiles)
    rivals.again(Processor.CPU)
    assert proposed(rivals, split) is None
    assert profiles.known == set()
    assert rivals.summary == "split points are not compared (brightness was not measured)"


@pytest.mark.parametrize("hot", list(Processor))
def test_on_a_gpu_the_hot_processor_decides_where_the_work_goes(hot: Processor) -> None:
    """A hot GPU leaves more to the head, and a hot CPU leaves more to the backbone."""
    points = tuple(
        ProfilePoint(name, 1, 1, 0.0, 0.01 * index, 0.0, 0.01 * (4 - index), 0.0) for index, name in enumerate(NAMES)
    )
    found = Profile("brightness", "cuda", points, StageContention())
    chooser = SplitChooser("cuda", lambda sizes, may_measure: found, 5.0, default=DEFAULT)
    _, choices = chooser.replan(lambda sizes, may_measure: found, (AUTO, 1, GOAL), hot)
    first = ["input", "parts.0", "parts.1"] if hot is Processor.GPU else ["output", "parts.2", "parts.1"]
    assert [choice.split_point for choice in choices[:3]] == first
