"""While the CPU is too hot, a rival wins that needs less of its time, unless it serves fewer frames."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
from dataclasses import replace

from proposed_rivals import Camera, Proposed, RivalsTurn
from recorded_sensors import Recording
from tenant_server import until
from two_stages import Stages, Start, brightness

from split_infer_ros.engines.execution_config import Convolutions, ExecutionConfig
from split_infer_ros.runtime.device import CPU
from split_infer_ros.server.improving import heat_watch, search, turns
from split_infer_ros.server.improving.measures import CoolMeasure
from split_infer_ros.server.improving.rivals import Rival, TakeImage
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.split.model import SplitModel
from split_infer_ros.telemetry.heat import Processor

BOUND_C = 80.0
SLOW_S, FAST_S = 0.02, 0.001  # far apart, so that a busy machine does not decide

RUN = Plan.run

Film = Callable[..., Stages]


class Known(Proposed):
    """Proposes one model each time that the heat has changed, measured by what counts then."""

    def __init__(self, model: SplitModel) -> None:
        super().__init__()
        self.model = model

    def again(self, hot: Processor | None) -> None:
        super().again(hot)
        self.is_done = False
        measure = {} if hot is None else {"measure": CoolMeasure(hot)}
        other = brightness() if hot is None else self.model
        self._left = [Rival("rival", other, **measure)]


def rival() -> SplitModel:
    return brightness().placed(CPU, ExecutionConfig(convolutions=Convolutions.CONTIGUOUS))


def spend(seconds: float) -> None:
    """Computes for so many seconds of CPU time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are short, and the sensors are read often."""
    monkeypatch.setattr(turns, "TURN_S", 0.02)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    monkeypatch.setattr(heat_watch, "PERIOD_S", 0.02)


@pytest.fixture
def sensors(monkeypatch: pytest.MonkeyPatch) -> Recording:
    found = Recording(60.0)
    monkeypatch.setattr(heat_watch.Sensors, "find", lambda: found)
    return found


@pytest.fixture
def film(start: Start) -> Iterator[Film]:
    """Starts both stages with rivals and a camera. After the test, checks that each frame has its own result."""
    cameras: list[Camera] = []

    def make(rivals: Proposed, max_temperature_c: float = BOUND_C) -> Stages:
        stages = start(rivals=rivals, drop_policy=DropPolicy.BLOCK, max_temperature_c=max_temperature_c)
        cameras.append(Camera(stages))
        return stages

    yield make
    for camera in cameras:
        camera.finish()


def compute(monkeypatch: pytest.MonkeyPatch, incumbent: tuple[float, float], rivals: tuple[float, float]) -> None:
    """Lets the two models take so many seconds for a batch: of CPU time, and of waiting."""

    def slower(plan: Plan, *args: Any, **options: Any) -> Any:
        busy_s, idle_s = incumbent if plan.model is brightness() else rivals
        spend(busy_s)
        time.sleep(idle_s)
        return RUN(plan, *args, **options)

    monkeypatch.setattr(Plan, "run", slower)


def text_of(stages: Stages) -> str:
    return stages.backbone.report(0.0).improvement


def test_heat_prefers_the_sparing_model_and_cooling_takes_it_back(
    film: Film, sensors: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(monkeypatch, (SLOW_S, 0.0), (FAST_S, SLOW_S / 2))  # clearly not slower, however busy the machine is
    rivals = Known(rival())
    stages = film(rivals)
    until(lambda: rivals.is_done and "within max_temperature_c 80" in text_of(stages))
    assert stages.backbone.plan.model is brightness()
    sensors.cpu_c = 81.0
    until(lambda: stages.backbone.instance.model is rivals.model)
    until(lambda: rivals.is_done)
    assert rivals.hot == [Processor.CPU]
    assert rivals.verdicts[0].rival_wins
    assert "as sparing of the CPU" in str(rivals.verdicts[0])
    assert "cpu-thermal shows 81.0 C, too hot for max_temperature_c 80" in text_of(stages)
    compute(monkeypatch, (0.0, FAST_S), (0.0, SLOW_S))
    sensors.cpu_c = 76.0  # not cool enough yet
    sensors.is_read.clear()
    sensors.is_read.wait()
    sensors.cpu_c = 75.0
    until(lambda: stages.backbone.instance.model is brightness())
    assert rivals.hot == [Processor.CPU, None]
    assert any("what needs less time of the CPU is preferred until it shows 75 C" in line for line in stages.said)


def test_a_sparing_model_that_serves_fewer_frames_is_not_taken(
    film: Film, sensors: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute(monkeypatch, (SLOW_S, 0.0), (FAST_S, 3 * SLOW_S))
    sensors.cpu_c = 90.0
    rivals = Known(rival())
    stages = film(rivals)
    until(lambda: bool(rivals.verdicts))
    assert not rivals.verdicts[0].rival_wins
    assert stages.backbone.instance.model is brightness()


def test_a_bound_set_while_frames_flow_counts_from_then_on(film: Film, sensors: Recording) -> None:
    sensors.cpu_c = 90.0
    rivals = Known(rival())
    stages = film(rivals, max_temperature_c=0.0)
    until(lambda: rivals.is_done)
    assert not sensors.is_read.is_set()
    stages.backbone.configure(replace(stages.backbone.settings, max_temperature_c=BOUND_C))
    until(lambda: rivals.hot == [Processor.CPU])
    stages.backbone.configure(replace(stages.backbone.settings, max_temperature_c=0.0))
    until(lambda: rivals.hot == [Processor.CPU, None])
    until(lambda: "C" not in text_of(stages))


def test_heat_ends_a_contest_by_other_rules(film: Film, sensors: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("split_infer_ros.server.improving.live_contest.Turns", RivalsTurn)  # a turn that never ends
    rivals = Proposed(rival())
    stages = film(rivals)
    until(lambda: stages.backbone.plan.model is not brightness())
    sensors.cpu_c = 90.0
    until(lambda: rivals.hot == [Processor.CPU])
    assert rivals.verdicts == []


def test_a_board_without_sensors_serves_and_says_so(film: Film, sensors: Recording) -> None:
    sensors.cpu_c = None
    rivals = Proposed()
    stages = film(rivals)
    until(lambda: "so max_temperature_c 80 has no effect" in text_of(stages))
    until(lambda: rivals.is_done)


def test_a_rivals_trial_is_ended_by_heat(film: Film, sensors: Recording) -> None:
    class Slow(Proposed):
        """Tries something until it is told to end."""

        interrupted = False

        def next(
            self, model: SplitModel, split_point: str, is_over: Callable[[], bool], take_image: TakeImage
        ) -> Rival | None:
            self.asked += 1
            until(is_over) if not self.hot else None
            return None

        def interrupt(self) -> None:
            self.interrupted = True

    rivals = Slow()
    film(rivals)
    until(lambda: rivals.asked == 1)
    sensors.cpu_c = 90.0
    until(lambda: rivals.hot == [Processor.CPU] and rivals.asked > 1)
    assert rivals.interrupted
