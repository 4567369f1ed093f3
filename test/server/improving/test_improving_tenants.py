"""Models of several tenants are improved one after the other, each as soon as its own camera sends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")
from brightness_models import BAD, LONG_S, BrightModel
from proposed_rivals import Proposed
from recorded_sensors import Recording
from tenant_server import SETTINGS, A, C, Running, until
from torch import Tensor

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server.improving import heat_watch, improver, live_contest, search, turns
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.telemetry.heat import Processor

SLOW_S, FAST_S = 0.01, 0.001  # far apart, so that a busy machine does not decide


class Timed(BrightModel):
    """A model that takes a given time for each batch.

    Attributes:
        runs: how many batches it ran, blank ones included.
        fails_from: it fails from this run on.
    """

    def __init__(self, name: str, seconds: float, *, idle: int = 1, backbone_fails: bool = False) -> None:
        super().__init__(name, idle=idle, backbone_fails=backbone_fails)
        self.runs = 0
        self.fails_from = math.inf
        self._seconds = seconds

    def backbone(self, name: str) -> Callable[[Tensor], Sequence[Tensor]]:  # type: ignore[override]
        backbone = super().backbone(name)

        def run(images: Tensor) -> Sequence[Tensor]:
            self.runs += 1
            if self.runs >= self.fails_from:
                raise RuntimeError("It fails late.")
            time.sleep(self._seconds)
            return backbone(images)

        return run


class Improved(Running):
    """A server whose models have rivals. A thread sends a frame of each named tenant as soon as the last is out."""

    def __init__(self, database: Path, models: Mapping[str, BrightModel], rivals: Mapping[str, Proposed]) -> None:
        self.rivals = rivals
        self.said: list[tuple[str, str]] = []
        self.cameras: tuple[str, ...] = ()
        super().__init__(database, models, SETTINGS, lambda key, line: self.said.append((key, line)))
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._film)
        self._thread.start()

    def open_model(self, tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        return replace(super().open_model(tenant, settings), rivals=self.rivals.get(tenant.model))

    def close(self) -> None:
        self._ends.set()
        self._thread.join(LONG_S)
        self.settled()
        self.pipeline.stop(LONG_S)
        self.check()
        self.pipeline.close()

    def _film(self) -> None:
        value = 0
        while not self._ends.wait(0.001):
            for tenant in self.cameras:
                self.send(tenant, value % 250)
            value += 1
            with suppress(ConfigurationError):  # a tenant was removed
                self.settled()


Improve = Callable[..., Improved]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns are short."""
    monkeypatch.setattr(turns, "TURN_S", 0.02)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    monkeypatch.setattr(improver, "RETRY_S", 0.01)


@pytest.fixture
def improve(tmp_path: Path) -> Iterator[Improve]:
    running: list[Improved] = []

    def make(*tenants: Tenant, models: Mapping[str, BrightModel], rivals: Mapping[str, Proposed]) -> Improved:
        found = Improved(tmp_path / "tuning.jsonl", models, rivals)
        running.append(found)
        assert found.set(*tenants) == {}
        found.pipeline.start()
        return found

    yield make
    for found in running:
        found.close()


def test_a_model_whose_camera_sends_nothing_keeps_no_other_model_waiting(improve: Improve) -> None:
    faster, other = Timed("one", FAST_S, idle=2), Timed("two", FAST_S, idle=2)
    rivals = {"one": Proposed(faster), "two": Proposed(other)}
    running = improve(C, A, models={"one": Timed("one", SLOW_S), "two": Timed("two", SLOW_S)}, rivals=rivals)
    running.cameras = ("a",)
    until(lambda: bool(running.said))
    assert running.said == [("one", "one runs on torch from now on: tried.")]
    assert running.pipeline.view.model_of("a").plan.model is faster
    assert running.pipeline.view.report("a", 0.0).improvement == "tried"
    assert rivals["two"].asked == 0
    running.cameras = ("a", "c")
    until(lambda: len(running.said) == 2)
    assert running.pipeline.view.model_of("c").plan.model is other


def test_a_model_that_comes_later_is_improved_too(improve: Improve) -> None:
    faster = Timed("two", FAST_S, idle=2)
    models = {"one": Timed("one", FAST_S), "two": Timed("two", SLOW_S)}
    running = improve(A, models=models, rivals={"one": Proposed(), "two": Proposed(faster)})
    running.cameras = ("a",)
    until(lambda: len(running.said) == 1)  # the improver has nothing more to do
    assert running.set(A, C) == {}
    running.cameras = ("a", "c")
    until(lambda: len(running.said) == 2)
    assert running.pipeline.view.model_of("c").plan.model is faster


def test_costs_of_a_rival_are_measured_before_its_turns_count(improve: Improve) -> None:
    """Its first batches are served between measurements, which the turns of its predecessor do not have."""
    faster = Timed("one", FAST_S, idle=2)
    rivals = Proposed(faster)
    running = improve(A, C, models={"one": Timed("one", SLOW_S), "two": Timed("two", FAST_S)}, rivals={"one": rivals})
    running.cameras = ("a", "c")
    until(lambda: bool(rivals.verdicts))
    assert rivals.verdicts[0].rival_wins
    running.measured()
    assert running.pipeline.view.costs.whole.batch_s("one", 1) < SLOW_S


def test_a_rival_that_loses_single_batches_is_taken_back(improve: Improve) -> None:
    model, rival = Timed("one", SLOW_S), Timed("one", FAST_S, idle=2, backbone_fails=True)
    rivals = Proposed(rival)
    running = improve(A, models={"one": model}, rivals={"one": rivals})
    running.cameras = ("a",)
    until(lambda: running.pipeline.view.model_of("a").plan.model is rival)
    running.send("a", BAD)
    until(lambda: rivals.is_done)
    assert rivals.refusals == ["It fails while frames flow (the backbone of one fails)."]
    assert running.pipeline.view.model_of("a").plan.model is model


@pytest.mark.parametrize("count", [0, 3, 30], ids="after {} runs".format)
def test_a_rival_that_fails_while_frames_flow_is_taken_back(improve: Improve, count: int) -> None:
    """It fails on live frames, or on the blank images with which its costs are measured."""
    model, late = Timed("one", FAST_S), Timed("one", FAST_S, idle=2)
    rivals = Proposed(late)
    running = improve(A, models={"one": model}, rivals={"one": rivals})
    running.cameras = ("a",)
    until(lambda: running.pipeline.view.model_of("a").plan.model is late)
    late.fails_from = late.runs + count
    until(lambda: rivals.is_done)
    (refusal,) = rivals.refusals
    assert refusal in ("It fails while frames flow (It fails late).", "It fails while its costs are measured.")
    assert running.pipeline.view.model_of("a").plan.model is model
    running.errors.clear()
    before = running.counts("a").published
    until(lambda: running.counts("a").published > before + 5)


def test_a_removed_tenant_ends_its_contest(improve: Improve) -> None:
    models = {"one": Timed("one", FAST_S), "two": Timed("two", SLOW_S)}
    rivals = {"one": Proposed(Timed("one", FAST_S, idle=2)), "two": Proposed(Timed("two", FAST_S, idle=2))}
    running = improve(A, C, models=models, rivals=rivals)
    running.cameras = ("a",)
    until(lambda: running.pipeline.view.model_of("a").plan.model is not models["one"])
    running.cameras = ("c",)
    assert running.set(C) == {}
    until(lambda: running.said == [("two", "two runs on torch from now on: tried.")])
    assert not rivals["one"].verdicts
    assert rivals["one"].closed > 0
    running.measured()
    assert running.pipeline.view.costs.whole.alone_s.keys() == {"two"}, "costs of the removed model do not come back"


def test_a_camera_that_pauses_ends_a_contest_until_it_sends_again(
    improve: Improve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_contest, "MAX_TURN_S", 0.3)
    monkeypatch.setattr(live_contest, "WAIT_S", 0.01)
    model = Timed("one", SLOW_S)
    rivals = Proposed(Timed("one", FAST_S, idle=2))
    running = improve(A, models={"one": model}, rivals={"one": rivals})
    running.cameras = ("a",)
    view = running.pipeline.view
    until(lambda: view.model_of("a").plan.model is not model)
    running.cameras = ()
    until(lambda: view.model_of("a").plan.model is model)
    asked = rivals.asked
    running.cameras = ("a",)
    until(lambda: bool(rivals.verdicts))
    assert rivals.asked > asked
    assert rivals.verdicts[0].rival_wins


def test_heat_is_told_to_each_model_and_searched_for_again(improve: Improve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heat_watch, "PERIOD_S", 0.02)
    monkeypatch.setattr(heat_watch.Sensors, "find", lambda: Recording(90.0))
    rivals = {"one": Proposed(), "two": Proposed()}
    running = improve(A, C, models={"one": Timed("one", FAST_S), "two": Timed("two", FAST_S)}, rivals=rivals)
    running.cameras = ("a", "c")
    until(lambda: len(running.said) == 2)
    running.pipeline.configure(replace(running.pipeline.settings, max_temperature_c=80.0))
    until(lambda: all(each.hot == [Processor.CPU] for each in rivals.values()))
    for tenant in ("a", "c"):
        told = running.pipeline.view.report(tenant, 0.0).improvement
        assert "cpu-thermal shows 90.0 C, too hot for max_temperature_c 80" in told
    assert running.set(A) == {}
    running.cameras = ("a",)
    running.pipeline.configure(replace(running.pipeline.settings, max_temperature_c=95.0))
    until(lambda: rivals["one"].hot == [Processor.CPU, None])
    assert rivals["two"].hot == [Processor.CPU], "it was removed"
