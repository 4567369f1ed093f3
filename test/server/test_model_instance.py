"""A model instance between a caller that makes batches and a head that the test plays."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from brightness_models import BrightModel, frame
from two_stages import RecordingHead

from split_infer_ros.buffers.slots import Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.memory_cost.memory_choice import MemoryAdvisor
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.server.account import Account
from split_infer_ros.server.batch import Batch
from split_infer_ros.server.frame import Frame
from split_infer_ros.server.local_transport import LocalTransport
from split_infer_ros.server.model_instance import ModelInstance
from split_infer_ros.server.settings import StageSettings

CPU = torch.device("cpu")
SETTINGS = StageSettings(split_point="parts.0", batch_size=2, pool_slots=2)


class Changed(threading.Condition):
    """Counts how often it is notified."""

    def __init__(self) -> None:
        super().__init__()
        self.notified = 0

    def notify_all(self) -> None:
        self.notified += 1
        super().notify_all()


class Bench:
    """An instance, the handles that it sends, and what it reports."""

    def __init__(self) -> None:
        self.head = RecordingHead()
        self.sent = self.head.sent
        self.errors: list[Exception] = []
        self.is_deaf = False
        self.back: list[Batch] = []
        self.changed = Changed()
        self.account = Account()
        self.instance = ModelInstance(
            key="one",
            model=BrightModel("one"),
            transport=LocalTransport(self.head),
            advisor=MemoryAdvisor(CPU),
            changed=self.changed,
            on_error=self.note,
            watch=self.back.append,
        )
        self.instance.use(self.instance.make_plan(SETTINGS))

    def note(self, error: Exception) -> None:
        if self.is_deaf:
            raise RuntimeError("nobody listens")
        self.errors.append(error)

    def frames(self, *values: int, account: Account | None = None) -> list[Frame]:
        account = account or self.account
        return [Frame(*frame(value, "a"), account.ledger.receive(1.0), account) for value in values]

    def open(self, *frames: Frame) -> Batch:
        batch = self.instance.start_batch(lambda: frames, 2.0)
        assert batch is not None
        return batch

    def hand_over(self, *frames: Frame) -> Batch:
        batch = self.open(*frames)
        loaded = batch.load()
        with torch.inference_mode():
            batch.plan.run(loaded, batch.lease, count=len(frames), stream=Stream(CPU), copy_stream=Stream(CPU)).wait()
        self.instance.hand_over(batch)
        return batch

    def answer(self, published: int, reason: str = "head_error") -> None:
        """The head takes the latest batch and gives it back."""
        handle, reader = self.sent[-1]
        reader.take(handle.lease)
        now = time.monotonic()
        reader.release(handle.lease, Outcome(published, reason, now, now, now))

    def dropped(self, account: Account | None = None) -> dict[str, int]:
        counts = (account or self.account).ledger.counts()
        assert counts.balanced
        return dict(counts.dropped)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_head_gets_the_features_and_the_frames_of_a_batch(bench: Bench) -> None:
    frames = bench.frames(51, 102)
    batch = bench.hand_over(*frames)
    ((handle, reader),) = bench.sent
    assert handle.origins == tuple(frame.origin for frame in frames)
    assert (handle.lease, handle.model, handle.split_point) == (batch.lease, "one", "parts.0")
    (features,) = reader.views(handle.lease, 2)
    # One multiplication by 1 and no addition but of 0: each value is the pixel's, in whatever order it is computed.
    assert features.amax((1, 2, 3)).mul(255).round().tolist() == [51, 102]
    assert batch.loaded is None


def test_outcome_settles_each_frame_of_a_batch(bench: Bench) -> None:
    bench.hand_over(*bench.frames(1, 2))
    bench.answer(published=1)
    assert bench.account.ledger.counts().published == 1
    assert bench.dropped() == {"head_error": 1}
    assert [len(batch.frames) for batch in bench.back] == [2]
    assert bench.account.meters.batches == 1
    assert bench.instance.in_flight == {}


def test_a_release_notifies_once(bench: Bench) -> None:
    bench.hand_over(*bench.frames(1))
    before = bench.changed.notified
    bench.answer(published=1)
    assert bench.changed.notified == before + 1


def test_frames_settled_before_stay_as_they_are(bench: Bench) -> None:
    first, second = bench.frames(1, 2)
    batch = bench.hand_over(first, second)
    batch.settle(first, 5.0, DropReason.REMOVED)
    bench.answer(published=2)
    assert bench.dropped() == {"removed": 1}
    assert bench.account.ledger.counts().published == 1
    batch.settle(first, 6.0)
    assert bench.account.ledger.counts().published == 1


def test_no_batch_is_closed_without_a_slot(bench: Bench) -> None:
    for value in (1, 2):
        bench.open(*bench.frames(value))
    closed: list[int] = []

    def frames() -> list[Frame]:
        closed.append(1)
        return []

    assert bench.instance.start_batch(frames, 3.0) is None
    assert closed == []


def test_a_batch_without_a_head_is_dropped_as_no_head(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.instance.connection, "send", lambda *_: 0)
    bench.hand_over(*bench.frames(1, 2))
    assert bench.dropped() == {"no_head": 2}
    assert bench.instance.plan.pool.leases.used == 0


def test_a_failed_batch_is_dropped_and_reported(bench: Bench) -> None:
    bench.instance.fail(bench.open(*bench.frames(1)), RuntimeError("it breaks"))
    assert bench.dropped() == {"backbone_error": 1}
    assert bench.instance.failure == "it breaks"
    assert [str(error) for error in bench.errors] == ["it breaks"]
    bench.hand_over(*bench.frames(2))
    assert bench.instance.failure == ""


def test_batches_of_a_lost_device_are_dropped_under_its_name(bench: Bench) -> None:
    batch = bench.open(*bench.frames(1))
    bench.instance.device_lost = True
    bench.instance.fail(batch, RuntimeError("the stream is gone"))
    assert bench.dropped() == {"device_lost": 1}


def test_a_batch_that_a_head_has_is_not_dropped(bench: Bench) -> None:
    batch = bench.hand_over(*bench.frames(1))
    handle, reader = bench.sent[0]
    reader.take(handle.lease)
    bench.instance.drop(batch, DropReason.SHUTDOWN)
    assert bench.dropped() == {}
    bench.instance.abandon(DropReason.SHUTDOWN)
    assert bench.dropped() == {"shutdown": 1}
    reader.release(handle.lease, Outcome(1, ""))  # too late to count
    assert bench.account.ledger.counts().published == 0


def test_a_slot_whose_head_never_comes_is_taken_back(bench: Bench) -> None:
    bench.hand_over(*bench.frames(1))
    bench.instance.collect(math.inf)
    assert bench.dropped() == {"lease_expired": 1}
    assert bench.back == []


def test_a_retired_plan_is_closed_once_it_is_empty(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    before = bench.instance.plan
    monkeypatch.setattr(type(before), "close", lambda plan: closed.append(plan))
    bench.hand_over(*bench.frames(1))
    bench.instance.use(bench.instance.make_plan(replace(SETTINGS, batch_size=1)))
    assert bench.instance.plan is not before
    bench.instance.collect(time.monotonic())
    assert closed == []
    bench.answer(published=1)
    bench.instance.collect(time.monotonic())
    assert closed == [before]


def test_new_settings_of_the_same_slots_replace_the_plan(bench: Bench) -> None:
    before = bench.instance.plan
    plan = before.with_settings(replace(SETTINGS, batch_timeout_s=1.0))
    assert plan is not None
    bench.instance.use(plan)
    bench.instance.collect(time.monotonic())
    assert bench.instance.plan is plan
    assert plan.pool is before.pool
    bench.hand_over(*bench.frames(1))  # its slots are still there


def test_each_account_counts_its_own_frames(bench: Bench) -> None:
    other = Account()
    bench.hand_over(*bench.frames(1), *bench.frames(2, account=other))
    bench.answer(published=1, reason="head_error")
    assert bench.account.ledger.counts().published == 1
    assert bench.dropped(other) == {"head_error": 1}
    assert bench.account.meters.batches == other.meters.batches == 1


@pytest.mark.parametrize(
    "finish", [lambda bench: bench.answer(1), lambda bench: bench.instance.abandon(DropReason.SHUTDOWN)]
)
def test_nothing_is_left_in_flight_at_the_end(bench: Bench, finish: Callable[[Bench], None]) -> None:
    bench.hand_over(*bench.frames(1))
    finish(bench)
    assert bench.account.ledger.counts().in_flight == 0
    assert bench.instance.report().slots_used in (0, 1)


def test_a_callback_that_raises_costs_no_frame_its_end(bench: Bench) -> None:
    bench.is_deaf = True
    bench.instance.fail(bench.open(*bench.frames(1)), RuntimeError("it breaks"))
    assert bench.dropped() == {"backbone_error": 1}


def test_a_watcher_that_raises_is_reported(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: Batch) -> None:
        raise RuntimeError("the disk is full")

    monkeypatch.setattr(bench.instance, "_watch", fail)
    bench.hand_over(*bench.frames(1))
    bench.answer(published=1)
    assert bench.account.ledger.counts().published == 1
    assert [str(error) for error in bench.errors] == ["the disk is full"]


def test_a_slot_of_a_dropped_batch_notifies_when_it_is_free(bench: Bench) -> None:
    bench.hand_over(*bench.frames(1))
    handle, reader = bench.sent[0]
    reader.take(handle.lease)
    bench.instance.abandon(DropReason.SHUTDOWN)
    before = bench.changed.notified
    reader.release(handle.lease, Outcome(1, ""))
    assert bench.changed.notified == before + 1
