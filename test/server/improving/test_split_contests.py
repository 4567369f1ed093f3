"""Plans with other slots take turns: each frame gets its own result, and the loser's slots are freed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")
from brightness_models import LONG_S
from proposed_rivals import Camera, Proposed, RivalsTurn
from tenant_server import until
from two_stages import Stages, Start, brightness

from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.engines.precision import Precision
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.device import CPU
from split_infer_ros.server.improving import search, turns
from split_infer_ros.server.improving.measures import GoalMeasure
from split_infer_ros.server.improving.rivals import Rival
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import DropPolicy, StageSettings
from split_infer_ros.split.planner import Goal, Objective

SLOW_S, FAST_S = 0.02, 0.001  # far apart, so that a busy machine does not decide
BEFORE, OTHER = "parts.0", "parts.1"  # split points

Film = Callable[..., Stages]


def settings(**change: Any) -> StageSettings:
    return replace(StageSettings(split_point=BEFORE, drop_policy=DropPolicy.BLOCK, batch_timeout_s=0.0), **change)


def rival(is_wanted: Callable[[], bool] = lambda: True, **change: Any) -> Rival:
    return Rival("rival", brightness(), settings(**change), GoalMeasure(Goal(Objective.THROUGHPUT)), is_wanted)


def point(stages: Stages) -> tuple[str, int]:
    return stages.backbone.plan.split_point.name, stages.backbone.settings.batch_size


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are short."""
    monkeypatch.setattr(turns, "TURN_S", 0.02)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first turn is the rival's, and never ends."""
    monkeypatch.setattr("split_infer_ros.server.improving.live_contest.Turns", RivalsTurn)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[SlotPool]:
    """All pools that are made, without those that were closed."""
    left: list[SlotPool] = []
    allocate, close = SlotPool.allocate.__func__, SlotPool.close  # type: ignore[attr-defined]

    def note(cls: type[SlotPool], *args: Any, **options: Any) -> SlotPool:
        left.append(allocate(cls, *args, **options))
        return left[-1]

    def forget(pool: SlotPool) -> None:
        assert pool in left, "it is closed twice"
        assert not pool.leases.used
        left.remove(pool)
        close(pool)

    monkeypatch.setattr(SlotPool, "allocate", classmethod(note))
    monkeypatch.setattr(SlotPool, "close", forget)
    return left


@pytest.fixture
def film(start: Start, pools: list[SlotPool]) -> Iterator[Film]:
    """Starts both stages with rivals and a camera. After the test, checks results and slots."""
    films: list[tuple[Stages, Camera]] = []

    def make(rivals: Proposed, **change: Any) -> Stages:
        given = settings(**change)
        options = {name: getattr(given, name) for name in ("split_point", "drop_policy", "batch_size")}
        stages = start(rivals=rivals, batch_timeout_s=0.0, **options)
        films.append((stages, Camera(stages)))
        return stages

    yield make
    for stages, camera in films:
        camera.finish()
        stages.backbone.instance.collect(time.monotonic())
        assert pools == [stages.backbone.plan.pool]


def take(monkeypatch: pytest.MonkeyPatch, slow: tuple[str, int]) -> None:
    """Makes the batches of one choice slow, and all others fast."""
    run = Plan.run

    def slower(plan: Plan, *args: Any, **options: Any) -> Any:
        is_slow = (plan.split_point.name, plan.settings.batch_size) == slow
        time.sleep(SLOW_S * plan.settings.batch_size if is_slow else FAST_S)
        return run(plan, *args, **options)

    monkeypatch.setattr(Plan, "run", slower)


@pytest.mark.parametrize(
    ("before", "after"), [((BEFORE, 1), (OTHER, 1)), ((BEFORE, 1), (BEFORE, 4)), ((BEFORE, 4), (OTHER, 1))], ids=str
)
def test_a_faster_choice_stays(
    film: Film, monkeypatch: pytest.MonkeyPatch, before: tuple[str, int], after: tuple[str, int]
) -> None:
    take(monkeypatch, before)
    rivals = Proposed(rival(split_point=after[0], batch_size=after[1]))
    stages = film(rivals, split_point=before[0], batch_size=before[1])
    until(lambda: bool(stages.said))
    assert rivals.verdicts[0].rival_wins
    assert point(stages) == after
    assert max(len(handle.origins) for handle in stages.handles) <= max(before[1], after[1])
    assert stages.backbone.instance.model is brightness()


@pytest.mark.parametrize("after", [(OTHER, 1), (BEFORE, 4)], ids=str)
def test_a_slower_choice_is_taken_back(film: Film, monkeypatch: pytest.MonkeyPatch, after: tuple[str, int]) -> None:
    run = Plan.run

    def slower(plan: Plan, *args: Any, **options: Any) -> Any:
        is_rival = (plan.split_point.name, plan.settings.batch_size) == after
        time.sleep(4 * SLOW_S if is_rival else FAST_S)  # more than four times as long, for up to four images
        return run(plan, *args, **options)

    monkeypatch.setattr(Plan, "run", slower)
    rivals = Proposed(rival(split_point=after[0], batch_size=after[1]))
    stages = film(rivals)
    until(lambda: bool(stages.said))
    assert not rivals.verdicts[0].rival_wins
    assert point(stages) == (BEFORE, 1)


def test_batches_fill_up_to_the_size_of_the_plan_in_force(film: Film, endless: None) -> None:
    stages = film(Proposed(rival(batch_size=4)))
    until(lambda: any(len(handle.origins) == 4 for handle in stages.handles))
    assert point(stages) == (BEFORE, 4)
    stages.backbone.stop(LONG_S)
    assert point(stages) == (BEFORE, 1)
    count = len(stages.handles)
    stages.backbone.start()
    stages.backbone.stop(LONG_S)
    assert all(len(handle.origins) == 1 for handle in stages.handles[count : count + 1])


@pytest.mark.parametrize(
    "change",
    [{"pool_slots": 2}, {"drop_policy": DropPolicy.LATEST}, {"batch_size": 2}, {"split_point": "parts.2"}],
    ids=str,
)
def test_a_change_of_settings_in_a_rivals_turn_holds(film: Film, endless: None, change: dict[str, Any]) -> None:
    rivals = Proposed(rival(split_point=OTHER))
    stages = film(rivals)
    until(lambda: point(stages) == (OTHER, 1))
    wanted = settings(**change)
    stages.backbone.configure(wanted)
    stages.backbone.stop(LONG_S)
    assert stages.backbone.settings == wanted
    assert rivals.verdicts == []


@pytest.mark.parametrize(("before", "after"), [(4, 1), (1, 4)])
def test_a_change_that_changes_nothing_leaves_a_rival_its_batch_size(
    film: Film, endless: None, before: int, after: int
) -> None:
    stages = film(Proposed(rival(batch_size=after)), batch_size=before)
    until(lambda: point(stages) == (BEFORE, after))
    stages.backbone.configure(settings(batch_size=before))
    count = len(stages.handles)
    until(lambda: len(stages.handles) > count + 40)
    assert point(stages) == (BEFORE, after)
    sizes = [len(handle.origins) for handle in stages.handles[count + 10 :]]
    assert max(sizes) == after
    assert stages.errors == []
    stages.backbone.stop(LONG_S)


def test_the_choice_from_before_holds_if_the_user_names_it_after_the_contest(
    film: Film, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, (BEFORE, 1))
    stages = film(Proposed(rival(split_point=OTHER)))
    until(lambda: bool(stages.said))
    assert point(stages) == (OTHER, 1)
    stages.backbone.configure(settings(split_point=BEFORE))
    assert point(stages) == (BEFORE, 1)


def test_a_choice_that_the_user_names_in_its_turn_holds(film: Film, endless: None) -> None:
    stages = film(Proposed(rival(split_point=OTHER)))
    until(lambda: point(stages) == (OTHER, 1))
    stages.backbone.configure(settings(split_point=OTHER))
    stages.backbone.stop(LONG_S)
    assert point(stages) == (OTHER, 1)


def test_a_rival_that_nobody_wants_any_more_ends_its_contest(film: Film, endless: None) -> None:
    is_wanted = [True]
    rivals = Proposed(rival(lambda: is_wanted[0], split_point=OTHER))
    stages = film(rivals)
    until(lambda: point(stages) == (OTHER, 1))
    is_wanted[0] = False
    until(lambda: point(stages) == (BEFORE, 1))
    stages.backbone.stop(LONG_S)
    assert point(stages) == (BEFORE, 1)
    assert rivals.verdicts == []


def test_a_stop_ends_a_contest_and_a_start_repeats_it(film: Film, endless: None) -> None:
    stages = film(Proposed(rival(split_point=OTHER, batch_size=2)))
    until(lambda: point(stages) == (OTHER, 2))
    stages.backbone.stop(LONG_S)
    assert point(stages) == (BEFORE, 1)
    stages.backbone.start()
    until(lambda: point(stages) == (OTHER, 2))
    stages.backbone.stop(LONG_S)


def test_the_head_is_prepared_before_a_rivals_turn(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(instance: ModelInstance, plan: Plan) -> None:
        if plan.split_point.name == OTHER:
            raise ConfigurationError("The head cannot run it.")

    monkeypatch.setattr(ModelInstance, "prepare_head", refuse)
    rivals = Proposed(rival(split_point=OTHER))
    stages = film(rivals)
    until(lambda: rivals.is_done)
    assert rivals.refusals == ["The head cannot run it."]
    assert point(stages) == (BEFORE, 1)
    assert all(handle.split_point == BEFORE for handle in stages.handles)


def test_a_choice_that_loses_batches_is_taken_back(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Plan.run

    def fail(plan: Plan, *args: Any, **options: Any) -> Any:
        if plan.split_point.name == OTHER:
            fail.runs += 1  # type: ignore[attr-defined]
            if fail.runs > 4:  # type: ignore[attr-defined]
                raise RuntimeError("It fails late.")
        return run(plan, *args, **options)

    fail.runs = 0  # type: ignore[attr-defined]
    monkeypatch.setattr(Plan, "run", fail)
    rivals = Proposed(rival(split_point=OTHER))
    stages = film(rivals)
    until(lambda: rivals.is_done)
    assert rivals.refusals == ["It fails while frames flow (It fails late)."]
    assert point(stages) == (BEFORE, 1)
    assert stages.errors


def test_a_rival_with_features_of_other_types_has_slots_of_its_own(film: Film, endless: None) -> None:
    model = brightness().placed(CPU, ExecutionConfig(convolutions=Convolutions.CONTIGUOUS, precision=Precision.BF16))
    stages = film(Proposed(Rival("bf16", model)))
    pool = stages.backbone.plan.pool
    until(lambda: stages.backbone.plan.model is model)
    assert stages.backbone.plan.pool is not pool
    stages.backbone.stop(LONG_S)
    assert stages.backbone.plan.pool is pool
    assert stages.backbone.instance.model is brightness()
    stages.check_results = lambda: None  # type: ignore[method-assign]  # scores in bf16 are not exact
