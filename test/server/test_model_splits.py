"""Tenants' models are each split where they measure best, and moved alone, while frames of all of them flow."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from brightness_models import LONG_S, BrightModel
from tenant_server import SETTINGS, Running, until, use_lanes
from torch import Tensor

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.server import model_splits
from split_infer_ros.server.improving import search, turns
from split_infer_ros.server.improving.improve import Improve
from split_infer_ros.server.improving.split_rivals import BackgroundProfiles
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.plan import Plan
from split_infer_ros.server.plan_changer import PlanChanger
from split_infer_ros.server.served_model import ServedModel
from split_infer_ros.server.settings import StageSettings
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.split_chooser import AUTO
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.planner import Goal, Objective
from split_infer_ros.split.profile import FindProfile, NotProfiledError, Profile, ProfilePoint, StageContention

A, C = Tenant("a", "one"), Tenant("c", "two")
NAMES = "input", "parts.0", "parts.1", "parts.2", "output"  # split points
OPEN = replace(SETTINGS, split_point=AUTO, goal=Goal(Objective.LATENCY), improve=Improve.BEFORE_START)
SIZES = 1, SETTINGS.largest_batch
DWELL_S = 0.2


class SlowingModel(BrightModel):
    """A model whose backbone may become slow; without operations it stays fast.

    Attributes:
        delay_s: of each batch.
    """

    delay_s = 0.0

    def backbone(self, name: str) -> Callable[[Tensor], Sequence[Tensor]]:  # type: ignore[override]
        backbone = super().backbone(name)

        def run(images: Tensor) -> Sequence[Tensor]:
            if name != "input" and images.any():
                time.sleep(self.delay_s)
            return backbone(images)

        return run


def profile(model: SplitModel, best: str, sizes: Sequence[int]) -> Profile:
    """Returns a profile with the lowest latency at one split point, and no work for the backbone at ``input``."""
    stages_s = dict.fromkeys(NAMES, (0.002, 0.002)) | {"input": (0.0, 3e-3), best: (1e-3, 1e-3)}
    points = [
        ProfilePoint(
            split_point.name, size, 1, 0.0, stages_s[split_point.name][0], 0.0, stages_s[split_point.name][1], 0.0
        )
        for size in sizes
        for split_point in model.split_points
    ]
    return Profile(model.entry.name, "cpu", tuple(points), StageContention())


class Split(Running):
    """A server whose models have profiles that a test makes up.

    Args:
        database: the file of costs.
        settings: the first ones.
        best: the split point of the lowest latency in the profile of each model.
        tuned: the split points that tuning found.

    Attributes:
        asked: the model of each profile that was asked for, and its batch sizes.
        profiled: batch sizes that are known, by model.
        lines: what was said about models.
        profiles: what measures profiles while frames flow, by model.
    """

    def __init__(
        self, database: Path, settings: SharedSettings, best: Mapping[str, str], tuned: Mapping[str, str]
    ) -> None:
        self.asked: set[tuple[str, tuple[int, ...]]] = set()
        self.profiled: dict[str, set[int]] = {name: set() for name in best}
        self.lines: list[str] = []
        self.profiles: dict[str, BackgroundProfiles] = {}
        self._best, self._tuned = best, tuned
        models = {name: SlowingModel(name, number) for number, name in enumerate(best, 1)}
        super().__init__(database, models, settings, lambda key, line: self.lines.append(f"{key}: {line}"))

    def open_model(self, tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        opened = super().open_model(tenant, settings)

        def find(sizes: Sequence[int], may_measure: bool) -> Profile:
            self.asked.add((tenant.model, tuple(sizes)))
            known = self.profiled[tenant.model]
            if not may_measure and not known >= set(sizes):
                raise NotProfiledError(f"{tenant.model} was not measured.")
            known |= set(sizes)
            return profile(opened.model, self._best[tenant.model], sizes)

        split_point = self._tuned.get(tenant.model, "default")
        return replace(opened, find_profile=find, split_point=split_point, profiles=self.profiles.get(tenant.model))

    @property
    def split_points(self) -> dict[str, str]:
        """Where each model is split, by its name."""
        return {key: served.plan.split_point.name for key, served in self.pipeline.view.models.items()}

    @contextmanager
    def frames_flow(self, *tenants: str) -> Iterator[None]:
        """Sends frames of these tenants meanwhile, and waits until all of them are settled."""
        ended = threading.Event()

        def feed() -> None:
            value = 0
            while not ended.wait(1e-3):
                value = value % 200 + 1
                for name in tenants:
                    self.send(name, value)

        feeding = threading.Thread(target=feed)
        feeding.start()
        try:
            yield
        finally:
            ended.set()
            feeding.join()
        self.settled()


Serve = Callable[..., Split]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts a server of the models that are named, each split best as given."""
    running: list[Split] = []

    def make(settings: SharedSettings = OPEN, tuned: Mapping[str, str] | None = None, **best: str) -> Split:
        run = Split(tmp_path / "tuning.jsonl", settings, best, tuned or {})
        running.append(run)
        assert run.set(*(tenant for tenant in (A, C) if tenant.model in best)) == {}
        run.pipeline.start()
        run.measured()
        return run

    yield make
    for found in running:
        found.pipeline.stop(LONG_S)
        found.check()
        found.pipeline.close()


def test_each_model_is_split_where_it_measures_best(serve: Serve) -> None:
    run = serve(one="input", two="parts.1")
    assert run.split_points == {"one": "input", "two": "parts.1"}
    assert run.asked == {("one", SIZES), ("two", SIZES)}
    for name in "ac":
        run.send(name, 10, 20)
    run.settled()
    assert [run.pipeline.view.report(name, 0.0).split_point for name in "ac"] == ["input", "parts.1"]
    assert run.errors == []


@pytest.mark.parametrize(("wanted", "found"), [("default", "parts.1"), ("input", "input"), (AUTO, "parts.0")])
def test_default_is_what_tuning_found(serve: Serve, wanted: str, found: str) -> None:
    run = serve(replace(OPEN, split_point=wanted), tuned={"one": "parts.1"}, one="parts.0")
    assert run.split_points == {"one": found}


def test_a_model_that_nobody_measures_cannot_be_auto(tmp_path: Path) -> None:
    run = Running(tmp_path / "tuning.jsonl", {"one": BrightModel("one")}, OPEN)
    assert "split_point cannot be auto" in str(run.set(A)["a"])
    run.pipeline.close()


def test_split_point_changes_to_and_from_auto_while_frames_flow(serve: Serve) -> None:
    run = serve(replace(OPEN, split_point="parts.0"), one="input", two="parts.1")
    with run.frames_flow("a", "c"):
        with pytest.raises(ConfigurationError, match="one: one was not measured"):
            run.pipeline.configure(OPEN)
        assert run.split_points == {"one": "parts.0", "two": "parts.0"}
        assert run.pipeline.settings.split_point == "parts.0"
        for known in run.profiled.values():
            known |= set(SIZES)
        run.pipeline.configure(OPEN)
        assert run.split_points == {"one": "input", "two": "parts.1"}
        run.pipeline.configure(replace(OPEN, split_point="output"))
        assert set(run.split_points.values()) == {"output"}
        run.pipeline.configure(replace(OPEN, split_point="default"))
        assert set(run.split_points.values()) == {"parts.0"}
    assert run.errors == []


def test_another_goal_is_planned_for_each_model(serve: Serve) -> None:
    run = serve(replace(OPEN, goal=Goal()), one="input", two="parts.1")
    run.pipeline.configure(replace(OPEN, goal=Goal(Objective.LATENCY, 1e-3)))
    assert run.split_points == {"one": "input", "two": "parts.1"}
    assert [line.partition(" keeps")[0] for line in run.lines] == [
        f"{name}: No split point of {name}" for name in ("one", "two")
    ]


@pytest.mark.parametrize("lanes", [False, True])
def test_one_model_moves_alone_when_its_backbone_slows_down(
    serve: Serve, lanes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_splits, "DWELL_S", DWELL_S)
    use_lanes(monkeypatch, lanes)
    run = serve(one="parts.1", two="parts.1")
    run.send("c", 10)
    other = run.pipeline.view.models["two"].plan
    model = run.models["one"]
    assert isinstance(model, SlowingModel)
    model.delay_s = 0.02
    with run.frames_flow("a"):
        until(lambda: run.split_points["one"] == "input")
        received = run.counts("a").received
        until(lambda: run.counts("a").received > received + 10)
    assert run.pipeline.view.models["two"].plan is other
    assert run.lines[0].startswith("one: The split point moves from parts.1 at batch size 5 to input at 5: ")
    assert run.pipeline.settings.split_point == AUTO
    run.pipeline.configure(replace(OPEN, pool_slots=3))
    assert run.split_points == {"one": "input", "two": "parts.1"}, "it stays where it was moved"
    assert run.errors == []


def test_a_server_that_stops_during_a_move_ends(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_splits, "DWELL_S", DWELL_S)
    run = serve(one="parts.1")
    moving, gate = threading.Event(), threading.Event()
    next_plan = PlanChanger.next_plan

    def wait(
        changer: PlanChanger, served: ServedModel, settings: StageSettings, taken_bytes: float, is_running: bool
    ) -> Plan:
        moving.set()
        assert gate.wait(LONG_S)
        return next_plan(changer, served, settings, taken_bytes, is_running)

    monkeypatch.setattr(PlanChanger, "next_plan", wait)
    model = run.models["one"]
    assert isinstance(model, SlowingModel)
    model.delay_s = 0.02
    with run.frames_flow("a"):
        assert moving.wait(LONG_S)
    stopping = threading.Thread(target=run.pipeline.stop, args=(LONG_S,))
    stopping.start()
    gate.set()
    stopping.join(LONG_S)
    assert not stopping.is_alive()
    assert run.split_points == {"one": "input"}


@pytest.mark.parametrize("lanes", [False, True])
def test_many_changes_of_models_that_run_together_lose_no_frame(
    serve: Serve, lanes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_lanes(monkeypatch, lanes)
    run = serve(one="input", two="parts.1")
    choice = random.Random(1)
    with run.frames_flow("a", "c"):
        for _ in range(60):
            run.pipeline.configure(replace(OPEN, split_point=choice.choice([*NAMES, AUTO])))
            time.sleep(0.01)
    assert run.errors == []
    for name in "ac":
        assert set(run.counts(name).dropped) <= {"overrun"}


class Measured:
    """Finds a made-up profile once frames flow. It is a ``BackgroundProfiles``.

    Attributes:
        asked: the batch sizes of each call.
    """

    def __init__(self, best: str) -> None:
        self.asked: list[list[int]] = []
        self._best = best

    def find(self, model: SplitModel, batch_sizes: Sequence[int], is_over: Callable[[], bool]) -> FindProfile:
        self.asked.append(list(batch_sizes))
        return lambda sizes, may_measure: profile(model, self._best, sizes)

    def cost(self) -> str:
        return ""

    def interrupt(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_each_model_serves_at_once_and_turns_choose_its_split_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both profiles are wrong for ``parts.1``: only at ``input`` the backbone is fast."""
    monkeypatch.setattr(turns, "TURN_S", 0.02)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    settings = replace(OPEN, improve=Improve.BACKGROUND)
    run = Split(tmp_path / "tuning.jsonl", settings, {"one": "input", "two": "parts.1"}, {})
    run.profiles = {"one": Measured("input"), "two": Measured("parts.1")}
    for model in run.models.values():
        assert isinstance(model, SlowingModel)
        model.delay_s = 0.02
    assert run.set(A, C) == {}
    assert run.split_points == {"one": "parts.0", "two": "parts.0"}
    run.pipeline.start()
    with run.frames_flow("a", "c"):
        until(lambda: sum(line.startswith(("one: one runs on", "two: two runs on")) for line in run.lines) == 2)
    assert run.split_points["one"] == "input"
    assert "split point input with batch size 5 is " in run.pipeline.view.report("a", 0.0).improvement
    assert all(profiles.asked == [list(SIZES)] for profiles in run.profiles.values())  # type: ignore[attr-defined]
    run.pipeline.configure(replace(settings, pool_slots=3))
    assert run.split_points["one"] == "input", "it stays where turns put it"
    run.pipeline.stop(LONG_S)
    run.check()
    run.pipeline.close()
    assert run.errors == []


def test_a_tenant_that_is_removed_during_a_contest_of_split_points_frees_its_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MIN_PAIRS", 10**6)  # no contest ends by itself
    monkeypatch.setattr(turns, "CLEARLY_SLOWER", 10**6)
    monkeypatch.setattr(turns, "TURN_S", 0.02)
    monkeypatch.setattr(search, "MIN_BATCHES", 2)
    run = Split(tmp_path / "tuning.jsonl", replace(OPEN, improve=Improve.BACKGROUND), {"one": "input"}, {})
    run.profiles = {"one": Measured("input")}
    assert run.set(A) == {}
    run.pipeline.start()
    with run.frames_flow("a"):
        until(lambda: run.split_points["one"] == "input")
        plans = run.pipeline.view.models["one"].instance.plans
        assert run.set() == {}
        until(lambda: not plans.is_holding)
    run.pipeline.stop(LONG_S)
    run.check()
    run.pipeline.close()
    assert run.errors == []
