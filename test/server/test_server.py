"""Tenants on models that they share: each frame is settled once, and at its own tenant."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from brightness_models import BAD, LONG_S, BrightModel
from tenant_server import SETTINGS, A, B, C, Running, Serve, until

from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, ImageError
from split_infer_ros.measurements.database import Database
from split_infer_ros.measurements.record import Record
from split_infer_ros.server import served_model, server, warm_up
from split_infer_ros.server.costs import kept_costs
from split_infer_ros.server.execution.merge_runner import Inputs
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.report import ModelReport
from split_infer_ros.server.schedule.execution_costs import Combination
from split_infer_ros.server.schedule.request import LatePolicy
from split_infer_ros.server.served_model import ServedModel


def test_each_frame_gets_its_own_result_at_its_own_tenant(serve: Serve) -> None:
    run = serve(A, B, C, one=BrightModel("one"), two=BrightModel("two", 9))
    for value in range(0, 200, 10):
        for index, tenant in enumerate("abc"):
            run.send(tenant, value + index)
        if value % 50 == 0:
            run.settled()
    run.settled()
    for index, tenant in enumerate("abc"):
        headers = [origin.header[1] for origin, _ in run.delivered[tenant]]
        assert headers == [value + index for value in range(0, 200, 10)]
        report = run.pipeline.view.report(tenant, time.monotonic())
        assert report.counts.published == 20
        assert report.model == ("two" if tenant == "c" else "one")
        assert report.split_point == "parts.0"
        assert report.latency_p50_s > 0
        assert report.batches > 0
    assert run.errors == []
    assert run.pipeline.view.entry("c").labels == ("bright by two",)


def test_frames_of_tenants_on_one_model_go_as_one_batch(serve: Serve) -> None:
    one = BrightModel("one")
    run = serve(A, B, one=one)
    one.gate.clear()
    run.send("a", 1)
    until(lambda: not run.pipeline.view.num_waiting)
    for value in range(2, 5):
        run.send("a", value)
        run.send("b", value)
    one.gate.set()
    run.settled()
    assert sum(one.batches) == 7
    assert max(one.batches) > 1
    for tenant in "ab":
        report = run.pipeline.view.report(tenant, time.monotonic())
        assert 0 < report.merged_batches <= report.batches
        assert (report.fused_batches, report.stacked_batches) == (0, 0)
        assert 0 < report.queueing_mean_s <= report.queueing_p99_s <= report.latency_p99_s


def test_a_camera_that_floods_displaces_itself_alone(serve: Serve) -> None:
    one = BrightModel("one")
    run = serve(A, B, one=one, settings=replace(SETTINGS, max_waiting=2))
    one.gate.clear()
    run.send("b", 7)
    run.send("a", *range(100))
    run.send("b", 8)
    assert run.counts("a").dropped == {"overrun": run.counts("a").dropped["overrun"]}
    assert run.counts("a").in_flight <= 2 + 2 * SETTINGS.batch_size
    one.gate.set()
    run.settled()
    assert [origin.header[1] for origin, _ in run.delivered["a"]][-2:] == [98, 99]
    assert run.counts("b").dropped == {}
    assert run.counts("b").published == 2


def test_a_batch_that_fails_costs_itself_alone(serve: Serve) -> None:
    run = serve(A, C, one=BrightModel("one", backbone_fails=True), two=BrightModel("two", head_fails=True))
    for value in (1, BAD, 3):
        run.send("a", value)
        run.send("c", value)
        run.settled()
    assert run.counts("a").dropped == {"backbone_error": 1}
    assert run.counts("c").dropped == {"head_error": 1}
    assert [len(run.delivered[tenant]) for tenant in "ac"] == [2, 2]
    assert sorted(run.errors) == [("one", "the backbone of one fails"), ("two", "the head of two fails")]


def test_a_result_that_nobody_takes_costs_its_own_frame_alone(serve: Serve) -> None:
    one = BrightModel("one")
    run = serve(A, B, one=one)
    one.gate.clear()
    run.send("b", 1)
    run.send("a", BAD - 1)
    run.send("b", 2)
    one.gate.set()
    run.settled()
    assert run.counts("a").dropped == {"head_error": 1}
    assert run.counts("b").published == 2
    assert run.errors == [("a", "nobody hears it")]


def test_a_round_that_fails_does_not_end_the_next_ones(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    run = serve(A, one=BrightModel("one"))
    failures = [RuntimeError("the driver says no")]
    collect = ModelInstance.collect

    def fail_once(instance: ModelInstance, now: float) -> None:
        if failures:
            raise failures.pop()
        collect(instance, now)

    monkeypatch.setattr(ModelInstance, "collect", fail_once)
    run.send("a", 1)
    until(lambda: not failures)
    run.send("a", 2)
    run.settled()
    assert run.counts("a").dropped == {}
    assert run.errors == [("dispatcher", "the driver says no")]


def test_frames_of_a_batch_that_gets_no_slot_wait_on(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    run = serve(A, one=BrightModel("one"))
    failures = [OSError("no lock is left")]
    acquire = SlotPool.acquire

    def fail_once(pool: SlotPool) -> Lease | None:
        if failures:
            raise failures.pop()
        return acquire(pool)

    monkeypatch.setattr(SlotPool, "acquire", fail_once)
    run.send("a", 1)
    run.settled()
    assert run.counts("a").published == 1
    assert run.errors == [("dispatcher", "no lock is left")]


def test_report_that_raises_ends_no_thread(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Running, name: str, error: Exception) -> None:
        raise RuntimeError("nobody listens")

    monkeypatch.setattr(Running, "note", fail)
    run = serve(A, one=BrightModel("one", head_fails=True))
    for value in (BAD, 1):
        run.send("a", value)
        run.settled()
    assert run.counts("a").dropped == {"head_error": 1}
    assert run.counts("a").published == 1


def test_frames_are_taken_while_a_cost_is_written(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    run = serve(A, one=BrightModel("one"), two=BrightModel("two", 9))
    writing, written = threading.Event(), threading.Event()
    add = Database.add

    def add_slowly(database: Database, records: Iterable[Record]) -> None:
        writing.set()
        assert written.wait(LONG_S)
        add(database, records)

    monkeypatch.setattr(Database, "add", add_slowly)
    run.set(A, C)
    assert writing.wait(LONG_S)
    is_taken = takes_frames(run)
    written.set()
    assert is_taken
    run.settled()


def test_frames_are_taken_while_a_report_is_made(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    run = serve(A, one=BrightModel("one"))
    report, are_taken = ServedModel.report, []

    def report_slowly(model: ServedModel) -> ModelReport:
        are_taken.append(takes_frames(run))
        return report(model)

    with monkeypatch.context() as patch:
        patch.setattr(ServedModel, "report", report_slowly)
        run.pipeline.view.report("a", time.monotonic())
    assert are_taken == [True]
    run.settled()


def takes_frames(run: Running) -> bool:
    """Sends a frame from another thread; returns whether it was taken at once."""
    sender = threading.Thread(target=run.send, args=("a", 1))
    sender.start()
    sender.join(10.0)
    return not sender.is_alive()


def test_what_was_not_foreseen_is_recorded_once_nothing_comes(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    run = serve(A, one=BrightModel("one"))
    runner = run.pipeline.executor.whole
    most_missed = [(("one", 4),)]
    recorded: list[dict[str, int]] = []

    def prepare(inputs: Inputs) -> None:
        recorded.append({name: len(images) for name, images in inputs.items()})
        most_missed.clear()

    class Graphs:
        has_room = remove_models = staticmethod(lambda found: False)

        @property
        def most_missed(self) -> Combination | None:
            return most_missed[0] if most_missed else None

    monkeypatch.setattr(runner, "prepare", prepare)
    monkeypatch.setattr(runner, "graphs", Graphs())
    until(lambda: bool(recorded))
    run.send("a", 1)
    run.settled()
    assert recorded == [{"one": 4}]
    assert run.errors == []


def test_what_cannot_be_read_or_was_missed_is_counted(serve: Serve) -> None:
    run = serve(A, one=BrightModel("one"))
    run.pipeline.intake("a").refuse(ImageError(DropReason.UNKNOWN_ENCODING, "What is this?"), 1.0)
    run.pipeline.intake("a").missed(3, DropReason.MIDDLEWARE)
    run.send("nobody", 1)
    run.pipeline.intake("nobody").refuse(ImageError(DropReason.UNKNOWN_ENCODING, "What is this?"), 1.0)
    run.pipeline.intake("nobody").missed(3, DropReason.MIDDLEWARE)
    assert run.counts("a").dropped == {"unknown_encoding": 1, "middleware": 3}
    with pytest.raises(ConfigurationError, match=r"There is no tenant 'nobody'; there are: a\."):
        run.pipeline.view.report("nobody", 1.0)


def test_late_frames_are_dropped_or_finished_as_the_tenant_says(serve: Serve) -> None:
    one = BrightModel("one")
    run = serve(replace(A, deadline_s=1e-9, when_late=LatePolicy.DROP), replace(B, deadline_s=1e-9), one=one)
    run.send("a", 1, 2)
    run.send("b", 3, 4)
    run.settled()
    assert run.counts("a").dropped == {"deadline": 2}
    assert run.counts("b").published == 2


def test_freed_memory_is_given_back_at_the_first_start_alone(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[bool] = []
    monkeypatch.setattr(server, "trim", lambda: given_back.append(True))
    run = serve(A, one=BrightModel("one"))
    run.pipeline.stop(LONG_S)
    run.pipeline.start()
    assert given_back == [True]


def test_a_model_is_measured_once_for_all(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (server, warm_up):
        monkeypatch.setattr(module, "max_threads", lambda: 2)
    monkeypatch.setattr(kept_costs, "samples_agree", lambda samples: True)  # whatever else this machine is at
    run = serve(A, C, one=BrightModel("one"), two=BrightModel("two"))
    modes = run.pipeline.view.costs
    assert modes.num_lanes == 2
    for costs in (modes.whole, modes.lane):
        assert sorted(costs.alone_s["one"]) == [1, 2, 4, 5]
    assert list(modes.whole.fused_s) != []
    records = len(Database(tmp_path / "tuning.jsonl").records())
    again = serve(A, C, one=BrightModel("one"), two=BrightModel("two"))
    assert again.pipeline.view.costs == modes
    assert len(Database(tmp_path / "tuning.jsonl").records()) == records


def test_what_is_not_done_in_time_is_dropped_at_the_end_and_it_can_begin_again(serve: Serve) -> None:
    run = serve(A, one=BrightModel("one"))
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


def test_a_decoder_that_hangs_keeps_no_frame_open_at_the_end(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "HEAD_S", 0.05)
    run = serve(A, one=BrightModel("one"))
    run.deliver_gate.clear()
    run.send("a", 1, 2, 3)
    until(lambda: run.pipeline.view.num_waiting < 3)  # the last ones may wait until the decoder takes more
    run.pipeline.stop(0.05)
    counts = run.counts("a")
    assert counts.balanced
    assert (counts.in_flight, sum(counts.dropped.values())) == (0, 3)
    run.deliver_gate.set()
    run.delivered.clear()
    run.pipeline.start()
    run.send("a", 4)
    run.settled()
    assert [origin.header[1] for origin, _ in run.delivered["a"]][-1] == 4
    run.ledgers.clear()  # what was given up may have been delivered since


def test_server_that_does_not_measure_takes_no_costs_of_others(serve: Serve) -> None:
    """Costs would say how many frames a batch waits for, which is up to ``batch_size`` there."""
    measured = serve(A, one=BrightModel("one"))
    assert measured.pipeline.view.costs.whole.knows("one")
    by_rule = serve(A, settings=replace(SETTINGS, measures=False), one=BrightModel("one"))
    assert not by_rule.pipeline.view.costs.whole.knows("one")
