"""Rivals take turns on live frames: the winner stays, and whoever changes settings or stops meanwhile is served."""

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

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.runtime.device import CPU
from split_infer_ros.server.improving import search, turns
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.split.model import SplitModel

SLOW_S, FAST_S = 0.02, 0.001  # far apart, so that a busy machine does not decide

Film = Callable[[Proposed], Stages]


def rival(**config: Any) -> SplitModel:
    return brightness().placed(CPU, ExecutionConfig(convolutions=Convolutions.CONTIGUOUS, **config))


class Broken(Proposed):
    """Cannot propose anything."""

    def next(
        self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
    ) -> Rival | None:
        raise OSError("no process can be started")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are short."""
    monkeypatch.setattr(turns, "TURN_S", 0.02)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)


@pytest.fixture
def film(start: Start) -> Iterator[Film]:
    """Starts both stages with rivals and a camera. After the test, checks that each frame has its own result."""
    cameras: list[Camera] = []

    def make(rivals: Proposed) -> Stages:
        stages = start(rivals=rivals, drop_policy=DropPolicy.BLOCK)
        cameras.append(Camera(stages))
        return stages

    yield make
    for camera in cameras:
        camera.finish()


def take(monkeypatch: pytest.MonkeyPatch, incumbent_s: float, rival_s: float) -> None:
    """Lets the two models take so many seconds for a batch."""
    run = Plan.run

    def slower(plan: Plan, *args: Any, **options: Any) -> Any:
        time.sleep(incumbent_s if plan.model is brightness() else rival_s)
        return run(plan, *args, **options)

    monkeypatch.setattr(Plan, "run", slower)


def test_a_faster_rival_stays(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, SLOW_S, FAST_S)
    faster = rival()
    rivals = Proposed(faster)
    stages = film(rivals)
    until(lambda: bool(stages.said))
    assert rivals.verdicts[0].rival_wins
    assert stages.backbone.plan.model is stages.backbone.instance.model is faster
    assert stages.backbone.report(0.0).improvement == "tried"
    assert stages.said == ["brightness runs on torch from now on: tried."]


def test_a_slower_rival_is_taken_back(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, FAST_S, SLOW_S)
    rivals = Proposed(rival())
    stages = film(rivals)
    until(lambda: bool(stages.said))
    assert not rivals.verdicts[0].rival_wins
    assert stages.backbone.plan.model is stages.backbone.instance.model is brightness()
    assert stages.said == ["brightness runs on torch from now on: tried."]


@pytest.mark.parametrize("change", [{"batch_size": 2}, {"drop_policy": DropPolicy.LATEST}], ids=str)
def test_a_change_of_settings_in_a_rivals_turn_goes_to_the_model_from_before(
    film: Film, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setattr("split_infer_ros.server.improving.live_contest.Turns", RivalsTurn)
    rivals = Proposed(rival())
    stages = film(rivals)
    until(lambda: stages.backbone.plan.model is not brightness())
    settings = replace(stages.backbone.settings, **change)
    stages.backbone.configure(settings)
    stages.backbone.stop(LONG_S)
    assert stages.backbone.plan.model is stages.backbone.instance.model is brightness()
    assert stages.backbone.settings == settings
    assert rivals.verdicts == []


def test_a_stop_ends_a_rivals_turn(film: Film, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("split_infer_ros.server.improving.live_contest.Turns", RivalsTurn)
    rivals = Proposed(rival())
    stages = film(rivals)
    until(lambda: stages.backbone.plan.model is not brightness())
    stages.backbone.stop(LONG_S)
    assert stages.backbone.plan.model is brightness()
    stages.backbone.start()
    until(lambda: stages.backbone.plan.model is not brightness())


def test_a_fault_of_the_trials_costs_no_frame(film: Film) -> None:
    stages = film(Broken())
    until(lambda: bool(stages.said))
    assert stages.said == ["brightness is not improved further: OSError: no process can be started."]
