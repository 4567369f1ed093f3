"""Batches side by side on two lanes of a running pipeline."""

from __future__ import annotations

import threading

import pytest
from brightness_models import BAD, LONG_S, BrightModel
from tenant_server import A, B, C, Serve, until, use_lanes

from split_infer_ros.server.batch import Batch


@pytest.fixture(autouse=True)
def lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    use_lanes(monkeypatch, True)


def test_a_lane_that_waits_holds_up_no_other(serve: Serve) -> None:
    one = BrightModel("one")
    run = serve(A, B, C, one=one, two=BrightModel("two"))
    one.gate.clear()
    run.send("a", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    for value in range(3, 9):
        run.send("c", value)
        until(lambda: run.counts("c").in_flight == 0)
    assert run.counts("a").in_flight == 1
    run.send("b", 9)
    until(lambda: not run.pipeline.view.num_waiting)
    assert len(run.pipeline.view.models["one"].in_flight) == 2, "the same model on both lanes"
    one.gate.set()
    run.settled()
    assert [len(run.delivered[tenant]) for tenant in "abc"] == [1, 1, 6]
    assert run.errors == []


def test_one_camera_has_both_lanes_and_its_results_keep_their_order(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first frame is computed after the second one."""
    run = serve(A, one=BrightModel("one"))
    second = threading.Event()
    load = Batch.load

    def wait_for_second(batch: Batch) -> object:
        (frame,) = batch.frames
        if frame.origin.header[1] == 1:
            assert second.wait(LONG_S)
        loaded = load(batch)
        second.set()
        return loaded

    monkeypatch.setattr(Batch, "load", wait_for_second)
    run.send("a", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    run.send("a", 2)
    run.settled()
    assert [origin.header[1] for origin, _ in run.delivered["a"]] == [1, 2]


def test_many_frames_of_many_cameras_each_get_their_own_result_in_order(serve: Serve) -> None:
    run = serve(A, B, C, one=BrightModel("one"), two=BrightModel("two"))
    threads = set()
    load = Batch.load

    def note(flight: Batch) -> object:
        threads.add(threading.current_thread().name)
        return load(flight)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "load", note)
        for value in range(0, 240, 12):
            for index, tenant in enumerate("abc"):
                run.send(tenant, value + index)
        run.settled()
    for index, tenant in enumerate("abc"):
        values = [origin.header[1] for origin, _ in run.delivered[tenant]]
        assert values == [value + index for value in range(0, 240, 12)]
    assert threads == {"lane 0", "lane 1"}


def test_a_batch_that_fails_costs_its_own_lane_alone(serve: Serve) -> None:
    one, two = BrightModel("one", backbone_fails=True), BrightModel("two")
    run = serve(A, C, one=one, two=two)
    two.gate.clear()
    run.send("c", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    for value in (BAD, 2):
        run.send("a", value)
        until(lambda: run.counts("a").in_flight == 0)
    two.gate.set()
    run.settled()
    assert run.counts("a").dropped == {"backbone_error": 1}
    assert [len(run.delivered[tenant]) for tenant in "ac"] == [1, 1]
    assert run.errors == [("one", "the backbone of one fails")]


def test_a_model_that_goes_is_there_until_its_lane_is_done(serve: Serve) -> None:
    two = BrightModel("two")
    run = serve(A, C, one=BrightModel("one"), two=two)
    two.gate.clear()
    run.send("c", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    run.set(A)
    run.send("a", 2)
    run.settled()
    two.gate.set()
    until(lambda: not run.pipeline.view.leaving)
    (gone,) = run.ledgers["c"]
    assert gone.counts().dropped == {"removed": 1}
    assert run.errors == []
    until(lambda: list(run.pipeline.executor.whole.models) == ["one"])


def test_what_is_under_way_on_lanes_is_waited_for_at_the_end(serve: Serve) -> None:
    one = BrightModel("one")
    run = serve(A, B, one=one)
    one.gate.clear()
    run.send("a", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    run.send("b", 3)
    until(lambda: not run.pipeline.view.num_waiting)
    run.send("a", 2)
    stopping = threading.Thread(target=run.pipeline.stop, args=(0.0,))
    stopping.start()
    until(lambda: "shutdown" in run.counts("a").dropped)
    one.gate.set()
    stopping.join(LONG_S)
    assert not stopping.is_alive()
    for tenant in "ab":
        counts = run.counts(tenant)
        assert counts.in_flight == 0
        assert counts.published + sum(counts.dropped.values()) == counts.received
    run.pipeline.start()
    run.send("a", 4)
    run.settled()
    assert run.delivered["a"][-1][0].header[1] == 4
