"""Tenants and settings that change while the rest run."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from brightness_models import BAD, LONG_S, BrightModel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tenant_server import SETTINGS, A, B, C, Serve, until, use_lanes

from split_infer_ros.errors import ConfigurationError
from split_infer_ros.models.detections import Limits
from split_infer_ros.server.opened_model import OpenedModel
from split_infer_ros.server.shared_settings import SharedSettings
from split_infer_ros.server.tenant import Tenant


def test_a_tenant_that_goes_takes_what_waits_with_it(serve: Serve) -> None:
    one = BrightModel("one")
    run = serve(A, B, one=one)
    one.gate.clear()
    run.send("a", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    run.send("a", 2, 3)
    run.send("b", 4)
    run.set(B)
    (gone,) = run.ledgers["a"]
    assert gone.counts().dropped == {"removed": 2}
    one.gate.set()
    run.settled()
    until(lambda: not gone.counts().in_flight)
    assert gone.counts().dropped == {"removed": 3}
    assert run.delivered["a"] == []
    assert len(run.delivered["b"]) == 1


def test_what_is_special_about_a_model_is_said_once(serve: Serve) -> None:
    run = serve(A, C, one=BrightModel("one"), two=BrightModel("two", notes=("two runs in its own way.",)))
    run.set(A, replace(C, deadline_s=5.0), replace(C, name="d"))
    run.send("d", 1)
    run.settled()
    assert run.errors == [("two", "two runs in its own way.")]


def test_a_model_goes_once_nobody_has_it_and_its_batches_are_back(serve: Serve) -> None:
    two = BrightModel("two")
    run = serve(A, C, one=BrightModel("one"), two=two)
    two.gate.clear()
    run.send("c", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    run.set(A)
    assert list(run.pipeline.view.tenants) == ["a"]
    (line,) = run.pipeline.view.leaving
    assert line.plan.pool.bytes > 0
    two.gate.set()
    until(lambda: not run.pipeline.view.leaving)
    run.send("a", 2)
    run.settled()
    assert line.plan.pool.bytes == 0
    assert len(run.delivered["a"]) == 1


def test_a_tenant_may_change_its_model_and_its_deadline(serve: Serve) -> None:
    run = serve(A, one=BrightModel("one"), two=BrightModel("two"))
    run.send("a", 1)
    run.settled()
    assert run.set(replace(A, deadline_s=5.0, priority=3)) == {}
    run.send("a", 2)
    run.settled()
    assert run.set(replace(A, model="two")) == {}
    run.send("a", 3)
    run.settled()
    assert run.counts("a").published == 3
    assert run.pipeline.view.report("a", 1.0).model == "two"
    assert run.pipeline.view.entry("a").labels == ("bright by two",)


def test_who_cannot_be_started_is_named_and_the_others_run(serve: Serve) -> None:
    run = serve(A, one=BrightModel("one"))
    refused = run.set(replace(A, model="nothing"), B, Tenant("d", "nothing"), Tenant("e", "broken"))
    assert list(refused) == ["a", "d", "e"]
    assert str(refused["e"]) == "broken cannot be loaded (what a factory raises)."
    assert "There is no model 'nothing'" in str(refused["d"])
    assert run.pipeline.view.tenants == {"a": A, "b": B}
    run.send("a", 1)
    run.send("b", 2)
    run.settled()
    assert [len(run.delivered[tenant]) for tenant in "ab"] == [1, 1]
    with pytest.raises(ConfigurationError, match="listed twice: a"):
        run.pipeline.set_tenants([A, B, A])
    assert run.pipeline.view.tenants == {"a": A, "b": B}


def test_models_that_together_take_too_much_are_refused_with_what_would_fit(serve: Serve) -> None:
    run = serve(A, one=BrightModel("one"), two=BrightModel("two"))
    one = run.pipeline.view.models["one"]
    run.pipeline.configure(replace(SETTINGS, memory_budget_bytes=1.5 * one.plan.budget_bytes))
    refused = run.set(A, C)
    assert list(refused) == ["c"]
    assert "two: Features and staging take" in str(refused["c"])
    assert "of which other models have" in str(refused["c"])
    assert "would fit" in str(refused["c"])
    run.send("a", 1)
    run.settled()
    assert run.counts("a").published == 1


def test_settings_change_while_frames_flow(serve: Serve) -> None:
    run = serve(A, B, one=BrightModel("one"))
    for value in range(60):
        if value % 10 == 0:
            most, slots = value // 10 % 3 + 1, value // 20 + 1
            run.pipeline.configure(replace(SETTINGS, batch_size=most, pool_slots=slots, max_waiting=60))
        run.send("a", value)
        run.send("b", value)
    run.settled()
    assert run.counts("a").published == run.counts("b").published == 60
    with pytest.raises(ConfigurationError, match="device cannot change"):
        run.pipeline.configure(replace(run.pipeline.settings, split_point="output", device="auto"))


def test_settings_and_the_state_change_while_a_model_is_loaded(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    two, loading, loaded = BrightModel("two"), threading.Event(), threading.Event()
    run = serve(A, one=BrightModel("one"))

    def open_slowly(tenant: Tenant, settings: SharedSettings) -> OpenedModel:
        loading.set()
        assert loaded.wait(LONG_S)
        return OpenedModel(two)

    monkeypatch.setattr(run, "open_model", open_slowly)
    coming = threading.Thread(target=run.set, args=(A, C))
    coming.start()
    assert loading.wait(LONG_S)
    run.pipeline.configure(replace(SETTINGS, batch_size=3, pool_slots=5))
    run.pipeline.limits = limits = Limits(max_detections=7)
    run.send("a", 1)
    run.settled()
    run.pipeline.stop(LONG_S)
    run.pipeline.start()
    assert coming.is_alive()
    loaded.set()
    coming.join(LONG_S)
    run.send("a", 2)
    run.send("c", 3)
    run.settled()
    assert [len(run.delivered[tenant]) for tenant in "ac"] == [2, 1]
    line = run.pipeline.view.models["two"]
    assert (line.plan.settings.batch_size, line.plan.settings.pool_slots) == (3, 5)
    assert line.head is not None
    assert line.head.limits is limits


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from("abc"), st.integers(1, 12)),
        st.tuples(st.just("set"), st.sets(st.sampled_from("abc")), st.sampled_from(["one", "two"])),
        st.tuples(st.just("restart"), st.just("a"), st.sampled_from([0.0, LONG_S])),
        st.tuples(st.just("configure"), st.integers(1, 4), st.integers(1, 3)),
    ),
    max_size=12,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.booleans())
def test_whatever_happens_each_frame_is_settled_once(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, steps: list[tuple[str, object, object]], lanes: bool
) -> None:
    use_lanes(monkeypatch, lanes)
    run = serve(A, C, one=BrightModel("one", backbone_fails=True), two=BrightModel("two", head_fails=True))
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
            assert all(not run.counts(name).in_flight for name in run.pipeline.view.tenants)
            run.pipeline.start()
        else:
            run.pipeline.configure(replace(SETTINGS, batch_size=first, pool_slots=second))  # type: ignore[arg-type]
    run.pipeline.stop(LONG_S)
    run.check()
    for ledgers in run.ledgers.values():
        assert all(ledger.counts().in_flight == 0 for ledger in ledgers)
