"""Tenants that come and go on models that they share: each frame is settled once, and at its own tenant."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bright import BAD, LONG_S, BrightModel, frame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from split_infer_ros.errors import ConfigurationError, ImageError, UnknownModelError
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.frame import Origin
from split_infer_ros.tenancy import roster
from split_infer_ros.tenancy.member import Member
from split_infer_ros.tenancy.request import DROP
from split_infer_ros.tenancy.shared_pipeline import SharedPipeline
from split_infer_ros.tenancy.shared_settings import SharedSettings
from split_infer_ros.tenancy.tenant import Tenant
from split_infer_ros.tuning.database import Database

SETTINGS = SharedSettings(device="cpu", waiting=20)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


class Running:
    """A shared pipeline, and what came out of it."""

    def __init__(self, database: Path, models: dict[str, BrightModel], settings: SharedSettings) -> None:
        self.models = models
        self.errors: list[tuple[str, str]] = []
        self.delivered: dict[str, list[tuple[Origin, Detections]]] = defaultdict(list)
        self.members: dict[str, list[Member]] = defaultdict(list)
        self.deliver_gate = threading.Event()
        self.deliver_gate.set()
        self.pipeline = SharedPipeline(settings, Limits(), self.deliver, self.note, Database(database))

    def note(self, name: str, error: Exception) -> None:
        self.errors.append((name, str(error)))

    def deliver(self, tenant: str, origin: Origin, detections: Detections) -> None:
        assert self.deliver_gate.wait(LONG_S)
        if origin.header[1] == BAD - 1:
            raise RuntimeError("nobody hears it")
        self.delivered[tenant].append((origin, detections))

    def set(self, *tenants: Tenant) -> dict[str, ConfigurationError]:
        refused = self.pipeline.set_tenants(tenants)
        for name, member in self.pipeline._members.items():
            if member not in self.members[name]:
                self.members[name].append(member)
        return refused

    def send(self, tenant: str, *values: int) -> None:
        for value in values:
            self.pipeline.submit(tenant, *frame(value, tenant), time.monotonic())

    def settled(self) -> None:
        until(lambda: not any(self.counts(name).in_flight for name in self.pipeline.tenants))

    def counts(self, tenant: str):  # type: ignore[no-untyped-def]
        return self.pipeline.report(tenant, time.monotonic()).counts

    def check(self) -> None:
        """All is accounted for, at its own tenant, in order."""
        for name, members in self.members.items():
            published = 0
            for member in members:
                counts = member.ledger.counts()
                assert counts.balanced
                published += counts.published
            assert published == len(self.delivered[name])
            for origin, detections in self.delivered[name]:
                assert origin.header[0] == origin.source == name, "another tenant's frame"
                assert round(detections.scores.item() * 255) == origin.header[1], "another frame's features"


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    running: list[Running] = []

    def make(*tenants: Tenant, settings: SharedSettings = SETTINGS, **models: BrightModel) -> Running:
        def load(name: str, weights: str, device: str, precision: str, *, allow_user_code: bool) -> BrightModel:
            if name == "broken":
                raise ValueError("what a factory raises")
            if name not in models:
                raise UnknownModelError(f"There is no model '{name}'.")
            return models[name]

        monkeypatch.setattr(roster, "load_model", load)
        running.append(Running(tmp_path / "tuning.jsonl", models, settings))
        assert running[-1].set(*tenants) == {}
        running[-1].pipeline.start()
        return running[-1]

    yield make
    for found in running:
        found.deliver_gate.set()
        for model in found.models.values():
            model.gate.set()
        found.pipeline.stop(LONG_S)
        found.check()
        found.pipeline.close()


A, B, C = Tenant("a", "one"), Tenant("b", "one"), Tenant("c", "two")


def test_each_frame_gets_its_own_result_at_its_own_tenant(start: Start) -> None:
    run = start(A, B, C, one=BrightModel("one"), two=BrightModel("two", 9))
    for value in range(0, 200, 10):
        for index, tenant in enumerate("abc"):
            run.send(tenant, value + index)
        if value % 50 == 0:
            run.settled()
    run.settled()
    for index, tenant in enumerate("abc"):
        headers = [origin.header[1] for origin, _ in run.delivered[tenant]]
        assert headers == [value + index for value in range(0, 200, 10)]
        report = run.pipeline.report(tenant, time.monotonic())
        assert report.counts.published == 20
        assert report.model == ("two" if tenant == "c" else "one")
        assert report.split_point == "parts.0"
        assert report.latency_p50_s > 0
        assert report.batches > 0
    assert run.errors == []
    assert run.pipeline.labels("c") == ("bright by two",)


def test_frames_of_tenants_on_one_model_go_as_one_batch(start: Start) -> None:
    one = BrightModel("one")
    run = start(A, B, one=one)
    one.gate.clear()
    run.send("a", 1)
    until(lambda: not run.pipeline._waiting)
    for value in range(2, 5):
        run.send("a", value)
        run.send("b", value)
    one.gate.set()
    run.settled()
    assert sum(one.batches) == 7
    assert max(one.batches) > 1


def test_a_camera_that_floods_displaces_itself_alone(start: Start) -> None:
    one = BrightModel("one")
    run = start(A, B, one=one, settings=replace(SETTINGS, waiting=2))
    one.gate.clear()
    run.send("b", 7)
    run.send("a", *range(100))
    run.send("b", 8)
    assert run.counts("a").dropped == {"overrun": run.counts("a").dropped["overrun"]}
    assert run.counts("a").in_flight <= 2 + 2 * SETTINGS.most
    one.gate.set()
    run.settled()
    assert [origin.header[1] for origin, _ in run.delivered["a"]][-2:] == [98, 99]
    assert run.counts("b").dropped == {}
    assert run.counts("b").published == 2


def test_a_batch_that_fails_costs_itself_alone(start: Start) -> None:
    run = start(A, C, one=BrightModel("one", backbone_fails=True), two=BrightModel("two", head_fails=True))
    for value in (1, BAD, 3):
        run.send("a", value)
        run.send("c", value)
        run.settled()
    assert run.counts("a").dropped == {"backbone_error": 1}
    assert run.counts("c").dropped == {"head_error": 1}
    assert [len(run.delivered[tenant]) for tenant in "ac"] == [2, 2]
    assert sorted(run.errors) == [("one", "the backbone of one fails"), ("two", "the head of two fails")]


def test_a_result_that_nobody_takes_costs_its_own_frame_alone(start: Start) -> None:
    one = BrightModel("one")
    run = start(A, B, one=one)
    one.gate.clear()
    run.send("b", 1)
    run.send("a", BAD - 1)
    run.send("b", 2)
    one.gate.set()
    run.settled()
    assert run.counts("a").dropped == {"head_error": 1}
    assert run.counts("b").published == 2
    assert run.errors == [("a", "nobody hears it")]


def test_what_cannot_be_read_or_was_missed_is_counted(start: Start) -> None:
    run = start(A, one=BrightModel("one"))
    run.pipeline.refuse("a", ImageError("bad_encoding", "What is this?"), 1.0)
    run.pipeline.missed("a", 3, "lost")
    run.send("nobody", 1)
    run.pipeline.refuse("nobody", ImageError("bad_encoding", "What is this?"), 1.0)
    run.pipeline.missed("nobody", 3, "lost")
    assert run.counts("a").dropped == {"bad_encoding": 1, "lost": 3}
    with pytest.raises(ConfigurationError, match=r"There is no tenant 'nobody'; there are: a\."):
        run.pipeline.report("nobody", 1.0)


def test_a_tenant_that_goes_takes_what_waits_with_it(start: Start) -> None:
    one = BrightModel("one")
    run = start(A, B, one=one)
    one.gate.clear()
    run.send("a", 1)
    until(lambda: not run.pipeline._waiting)
    run.send("a", 2, 3)
    run.send("b", 4)
    run.set(B)
    (gone,) = run.members["a"]
    assert gone.ledger.counts().dropped == {"removed": 2}
    one.gate.set()
    run.settled()
    until(lambda: not gone.ledger.counts().in_flight)
    assert gone.ledger.counts().dropped == {"removed": 3}
    assert run.delivered["a"] == []
    assert len(run.delivered["b"]) == 1


def test_a_model_goes_once_nobody_has_it_and_its_batches_are_back(start: Start) -> None:
    two = BrightModel("two")
    run = start(A, C, one=BrightModel("one"), two=two)
    two.gate.clear()
    run.send("c", 1)
    until(lambda: not run.pipeline._waiting)
    run.set(A)
    assert list(run.pipeline.tenants) == ["a"]
    (line,) = run.pipeline._dispatcher._leaving
    assert line.plan.pool.bytes > 0
    two.gate.set()
    until(lambda: not run.pipeline._dispatcher._leaving)
    run.send("a", 2)
    run.settled()
    assert line.plan.pool.bytes == 0
    assert len(run.delivered["a"]) == 1


def test_a_tenant_may_change_its_model_and_its_deadline(start: Start) -> None:
    run = start(A, one=BrightModel("one"), two=BrightModel("two"))
    run.send("a", 1)
    run.settled()
    assert run.set(replace(A, deadline_s=5.0, priority=3)) == {}
    run.send("a", 2)
    run.settled()
    assert run.set(replace(A, model="two")) == {}
    run.send("a", 3)
    run.settled()
    assert run.counts("a").published == 3
    assert run.pipeline.report("a", 1.0).model == "two"
    assert run.pipeline.labels("a") == ("bright by two",)


def test_who_cannot_be_started_is_named_and_the_others_run(start: Start) -> None:
    run = start(A, one=BrightModel("one"))
    refused = run.set(replace(A, model="nothing"), B, Tenant("d", "nothing"), Tenant("e", "broken"))
    assert list(refused) == ["a", "d", "e"]
    assert str(refused["e"]) == "broken cannot be loaded (what a factory raises)."
    assert "There is no model 'nothing'" in str(refused["d"])
    assert run.pipeline.tenants == {"a": A, "b": B}
    run.send("a", 1)
    run.send("b", 2)
    run.settled()
    assert [len(run.delivered[tenant]) for tenant in "ab"] == [1, 1]
    with pytest.raises(ConfigurationError, match="listed twice: a"):
        run.pipeline.set_tenants([A, B, A])
    assert run.pipeline.tenants == {"a": A, "b": B}


def test_models_that_together_take_too_much_are_refused_with_what_would_fit(start: Start) -> None:
    run = start(A, one=BrightModel("one"), two=BrightModel("two"))
    one = run.pipeline._dispatcher.lines["one"]
    run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=1.5 * one.budget_bytes))
    refused = run.set(A, C)
    assert list(refused) == ["c"]
    assert "two: Features and staging take" in str(refused["c"])
    assert "of which other models have" in str(refused["c"])
    assert "would fit" in str(refused["c"])
    run.send("a", 1)
    run.settled()
    assert run.counts("a").published == 1


def test_settings_change_while_frames_flow(start: Start) -> None:
    run = start(A, B, one=BrightModel("one"))
    for value in range(60):
        if value % 10 == 0:
            most, slots = value // 10 % 3 + 1, value // 20 + 1
            run.pipeline.configure(replace(SETTINGS, most=most, ring_slots=slots, waiting=60))
        run.send("a", value)
        run.send("b", value)
    run.settled()
    assert run.counts("a").published == run.counts("b").published == 60
    with pytest.raises(ConfigurationError, match="split_point, device cannot change"):
        run.pipeline.configure(replace(run.pipeline.settings, split_point="output", device="auto"))


def test_late_frames_are_dropped_or_finished_as_the_tenant_says(start: Start) -> None:
    one = BrightModel("one")
    run = start(replace(A, deadline_s=1e-9, when_late=DROP), replace(B, deadline_s=1e-9), one=one)
    run.send("a", 1, 2)
    run.send("b", 3, 4)
    run.settled()
    assert run.counts("a").dropped == {"deadline": 2}
    assert run.counts("b").published == 2


def test_a_model_is_measured_before_it_is_served_and_once_for_all(start: Start, tmp_path: Path) -> None:
    run = start(A, C, one=BrightModel("one"), two=BrightModel("two"))
    costs = run.pipeline._dispatcher._costs
    assert sorted(costs.alone_s["one"]) == [1, 2, 4, 8]
    assert list(costs.fused_s) != []
    records = len(Database(tmp_path / "tuning.jsonl").records())
    again = start(A, C, one=BrightModel("one"), two=BrightModel("two"))
    assert again.pipeline._dispatcher._costs == costs
    assert len(Database(tmp_path / "tuning.jsonl").records()) == records


def test_what_is_not_done_in_time_is_dropped_at_the_end_and_it_can_begin_again(start: Start) -> None:
    run = start(A, one=BrightModel("one"))
    run.deliver_gate.clear()
    run.send("a", *range(30))
    stopping = threading.Thread(target=run.pipeline.stop, args=(0.05,))
    stopping.start()
    until(lambda: "shutdown" in run.counts("a").dropped)
    run.deliver_gate.set()
    stopping.join(LONG_S)
    run.send("a", 1)
    assert run.counts("a").in_flight == 0
    assert run.counts("a").dropped["inactive"] == 1
    run.pipeline.start()
    before = run.counts("a").published
    run.send("a", 2)
    run.settled()
    assert run.counts("a").published == before + 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("abc"), st.integers(1, 12)),
        st.tuples(st.just("set"), st.sets(st.sampled_from("abc")), st.sampled_from(["one", "two"])),
        st.tuples(st.just("restart"), st.just("a"), st.sampled_from([0.0, LONG_S])),
        st.tuples(st.just("configure"), st.integers(1, 4), st.integers(1, 3)),
    ),
    max_size=12,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_whatever_happens_each_frame_is_settled_once(start: Start, steps: list[tuple[str, object, object]]) -> None:
    run = start(A, C, one=BrightModel("one", backbone_fails=True), two=BrightModel("two", head_fails=True))
    value = 0
    for kind, first, second in steps:
        if kind == "send":
            for _ in range(second):  # type: ignore[call-overload]
                value = value % BAD + 1
                run.send(first, value)  # type: ignore[arg-type]
        elif kind == "set":
            run.set(*(Tenant(name, second if name == "b" else "one") for name in sorted(first)))  # type: ignore
        elif kind == "restart":
            run.pipeline.stop(second)  # type: ignore[arg-type]
            assert all(not run.counts(name).in_flight for name in run.pipeline.tenants)
            run.pipeline.start()
        else:
            run.pipeline.configure(replace(SETTINGS, most=first, ring_slots=second))  # type: ignore[arg-type]
    run.pipeline.stop(LONG_S)
    run.check()
    for members in run.members.values():
        assert all(member.ledger.counts().in_flight == 0 for member in members)
