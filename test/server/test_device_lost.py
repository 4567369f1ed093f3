"""A pipeline whose device is lost while frames flow: each frame is dropped by reason, and no caller waits forever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
import torch
from brightness_models import LONG_S, BrightModel, frame
from lost_device import AcceleratorError, LostDevice
from tenant_server import until

from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.errors import ConfigurationError, SplitInferError
from split_infer_ros.models.detections import Detections
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.server import plan_making
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.local import LocalPipeline
from split_infer_ros.server.settings import DropPolicy, StageSettings


class Run:
    """A pipeline on a device that can be lost."""

    def __init__(self, drop_policy: str) -> None:
        self.device = LostDevice()
        self.model = BrightModel("one", device=self.device)
        self.delivered: list[Origin] = []
        settings = StageSettings(batch_size=2, batch_timeout_s=LONG_S, drop_policy=drop_policy)
        self.pipeline = LocalPipeline(self.model, settings, self.deliver)
        self.stage = self.pipeline.backbone

    def deliver(self, origin: Origin, detections: Detections) -> None:
        self.delivered.append(origin)

    def send(self, count: int) -> None:
        for _ in range(count):
            self.stage.intake.submit(*frame(7, "a"), time.monotonic())

    @property
    def dropped(self) -> dict[str, int]:
        counts = self.stage.ledger.counts()
        assert counts.balanced
        return dict(counts.dropped)

    @property
    def is_settled(self) -> bool:
        return not self.stage.ledger.counts().in_flight


@pytest.fixture(params=[DropPolicy.LATEST, DropPolicy.BLOCK])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    found = Run(request.param)
    with found.pipeline:
        yield found
        found.model.gate.set()


def test_frames_of_a_lost_device_are_dropped_by_reason(run: Run) -> None:
    run.send(2)
    until(lambda: run.is_settled)
    assert len(run.delivered) == 2
    run.model.gate.clear()
    run.send(2)
    until(lambda: run.stage.num_waiting == 0)
    run.send(2)  # they wait for the batch that is in flight
    run.device.left = 0
    run.model.gate.set()
    until(lambda: run.is_settled)
    run.send(2)  # they arrive after the loss
    assert run.dropped == {"device_lost": 6}
    errors = run.pipeline.errors
    assert [type(error) for error in errors] == [AcceleratorError]  # reported once
    assert "illegal memory access" in run.stage.report(time.monotonic()).failure


def test_waiting_sender_gets_an_error(run: Run) -> None:
    run.model.gate.clear()
    run.device.left = 0
    ended, given_up = threading.Event(), threading.Event()

    def feed() -> None:
        pixels, _ = frame(7, "a")
        with pytest.raises((SplitInferError, AcceleratorError)):
            run.pipeline.feed(pixels for _ in iter(given_up.is_set, True))
        ended.set()

    threading.Thread(target=feed, daemon=True).start()
    until(lambda: run.stage.ledger.counts().received >= 3)
    run.model.gate.set()
    in_time = ended.wait(LONG_S)
    given_up.set()
    assert in_time


def test_pipeline_on_a_lost_device_stops_at_once(run: Run) -> None:
    run.device.left = 0
    run.send(2)
    until(lambda: run.stage.is_lost)
    start = time.monotonic()
    run.stage.stop(LONG_S)
    assert time.monotonic() - start < LONG_S / 2  # it would wait only for frames in flight
    assert run.dropped == {"device_lost": 2}


def test_change_on_a_lost_device_ends_the_stage(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.device.left = 0

    def make(*_: object, **__: object) -> None:
        run.device.use()

    monkeypatch.setattr(plan_making, "make_preprocessor", make)
    with pytest.raises(ConfigurationError, match="illegal memory access"):
        run.stage.configure(StageSettings(batch_size=4))
    run.send(1)
    assert run.dropped == {"device_lost": 1}
    assert len(run.pipeline.errors) == 1


@pytest.mark.parametrize(
    "shortage",
    [
        torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.00 KiB. GPU 0 has a total capacity of 4.00 KiB of which 1.00 KiB "
            "is free."
        ),
        OutOfMemory("2,048 bytes were asked for, and the GPU has 1,024 free (cudaHostAlloc failed: out of memory)"),
    ],
    ids=["torch", "cuda"],
)
def test_lack_of_memory_keeps_the_old_plan(run: Run, shortage: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[SlotPool] = []
    close = SlotPool.close

    def note_and_close(pool: SlotPool) -> None:
        closed.append(pool)
        close(pool)

    def make(*_: object, **__: object) -> None:
        raise shortage

    before = run.stage.settings
    monkeypatch.setattr(SlotPool, "close", note_and_close)
    with monkeypatch.context() as patch:
        patch.setattr(plan_making, "make_preprocessor", make)
        with pytest.raises(ConfigurationError, match=r"2,048 bytes were asked for, and the GPU has 1,024 free"):
            run.stage.configure(StageSettings(batch_size=4))
    assert len(closed) == 1  # the new plan's pool
    assert run.stage.settings == before
    run.send(2)
    until(lambda: run.is_settled)
    assert (len(run.delivered), run.dropped) == (2, {})
