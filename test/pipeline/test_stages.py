"""Backbone and head together, on a model whose score tells the brightness of the very frame it was made of."""

from __future__ import annotations

import dataclasses
import functools
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import LEASE_S, SlotPool, find_pool
from split_infer_ros.buffers.slots import Lease
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import ConfigurationError, HandleError, ImageError, SplitInferError, UnknownSplitPointError
from split_infer_ros.images.encodings import Pixels
from split_infer_ros.models.detections import Candidates, Detections, Limits, suppress
from split_infer_ros.models.entry import ModelEntry, Weights
from split_infer_ros.models.preprocess import Preprocess
from split_infer_ros.pipeline.backbone_stage import TICK_S, BackboneStage
from split_infer_ros.pipeline.frame import Handle, Origin
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.local_transport import LocalTransport
from split_infer_ros.pipeline.model_instance import ModelInstance
from split_infer_ros.pipeline.settings import BLOCK, LATEST, StageSettings
from split_infer_ros.pipeline.timeline import Timeline
from split_infer_ros.pipeline.transport import Released
from split_infer_ros.split.model import SplitModel

LONG_S = 60.0  # a bound, far above what anything here takes
CPU = torch.device("cpu")


class Brightness(nn.Module):
    """The mean of red over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Conv2d(3, 3, 1), nn.AvgPool2d(4), nn.Flatten())
        nn.init.dirac_(self.parts[0].weight)  # type: ignore[arg-type]
        nn.init.zeros_(self.parts[0].bias)  # type: ignore[arg-type]

    def forward(self, images: Tensor) -> Tensor:
        return self.parts(images)[:, :1]  # type: ignore[no-any-return]


def decode(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
    return [
        Detections(torch.tensor([[0.0, 0.0, 4.0, 4.0]]), score.clone(), torch.zeros(1, dtype=torch.int64))
        for score in outputs[0]
    ]


ENTRY = ModelEntry(
    name="brightness",
    summary="",
    build=Brightness,
    weights=Weights(),
    preprocess=Preprocess(4, 4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
    labels=("bright",),
    default_split_point="parts.0",
    decode=decode,
)


@functools.cache
def brightness() -> SplitModel:
    return SplitModel(ENTRY, Brightness(), CPU)


def frame(brightness: int, height: int = 4, width: int = 4, source: str = "a") -> tuple[Pixels, Origin]:
    pixels = Pixels(torch.full((height, width, 3), brightness, dtype=torch.uint8), (0, 1, 2))
    return pixels, Origin(brightness, source, height, width)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


class Way:
    """A transport within the process; ``publish`` is what becomes of each handle."""

    shared = False

    def __init__(self, publish: Callable[[Handle], int], lease_s: float = LEASE_S) -> None:
        self.publish = publish
        self._lease_s = lease_s

    def connect(self, released: Released, wake: Callable[[], None]) -> Way:
        self._released = released
        return self

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        return SlotPool.allocate(layout, slots, place, lease_s=self._lease_s, released=self._released)

    def send(self, handle: Handle, pool: SlotPool) -> int:
        return self.publish(handle)


class Pipeline:
    """Both stages, with a gate at which the head can be held up."""

    def __init__(self, settings: StageSettings, lease_s: float = LEASE_S) -> None:
        self.errors: list[Exception] = []
        self.delivered: list[tuple[Origin, Detections]] = []
        self.handles: list[Handle] = []
        self.gate = threading.Event()
        self.gate.set()
        self.head = HeadStage(brightness(), Limits(), self.deliver, self.errors.append)
        self.way = Way(self.publish, lease_s)
        self.backbone = BackboneStage(brightness(), settings, self.way, self.errors.append)
        self.head.start()
        self.backbone.start()

    def publish(self, handle: Handle) -> int:
        self.handles.append(handle)
        self.hand(handle)
        return 1

    def hand(self, handle: Handle) -> None:
        self.head.submit(handle, find_pool(handle.lease))

    def deliver(self, handle: Handle, index: int, detections: Detections) -> None:
        assert self.gate.wait(LONG_S)
        self.delivered.append((handle.origins[index], detections))

    def send(self, *values: int, source: str = "a") -> None:
        for value in values:
            self.backbone.submit(*frame(value, source=source), time.monotonic())

    def settled(self) -> None:
        until(lambda: not self.backbone.ledger.counts().in_flight)

    def check_account(self) -> None:
        counts = self.backbone.ledger.counts()
        assert counts.balanced
        assert counts.published == len(self.delivered)
        for origin, detections in self.delivered:
            assert round(detections.scores.item() * 255) == origin.header, "features of another frame"

    def close(self) -> None:
        self.gate.set()
        self.backbone.stop(LONG_S)
        self.head.stop()


@pytest.fixture
def start() -> Iterator[Callable[..., Pipeline]]:
    running: list[Pipeline] = []

    def make(lease_s: float = LEASE_S, **settings: object) -> Pipeline:
        defaults = StageSettings(batch_timeout_s=0.001)
        running.append(Pipeline(replace(defaults, **settings), lease_s))  # type: ignore[arg-type]
        return running[-1]

    yield make
    for pipeline in running:
        pipeline.close()


Start = Callable[..., Pipeline]


@pytest.mark.parametrize("split_point", ["input", "default", "parts.1", "output"])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_each_frame_gets_its_own_result(start: Start, split_point: str, batch_size: int) -> None:
    pipeline = start(split_point=split_point, batch_size=batch_size, drop_policy=BLOCK, pool_slots=2)
    for value in range(40):
        assert pipeline.backbone.wait_for_room(LONG_S)
        pipeline.send(value, source="ab"[value % 2])
    pipeline.settled()
    pipeline.check_account()
    assert [origin.header for origin, _ in pipeline.delivered] == list(range(40))
    assert pipeline.errors == []
    assert all(len(handle.origins) <= batch_size for handle in pipeline.handles)


def test_boxes_come_out_in_pixels_of_each_source(start: Start) -> None:
    pipeline = start(batch_size=3, batch_timeout_s=LONG_S)
    for height, width in ((8, 16), (1, 1), (480, 640)):
        pipeline.backbone.submit(*frame(9, height, width), time.monotonic())
    pipeline.settled()
    boxes = [detections.boxes.tolist() for _, detections in pipeline.delivered]
    assert boxes == [[[0, 0, 16, 8]], [[0, 0, 1, 1]], [[0, 0, 640, 480]]]


def test_when_the_head_is_slow_older_frames_give_way(start: Start) -> None:
    pipeline = start(batch_size=2, pool_slots=2, drop_policy=LATEST)
    pipeline.gate.clear()
    pipeline.send(*range(100))
    counts = pipeline.backbone.ledger.counts()
    assert counts.balanced
    assert counts.in_flight <= 2 * (1 + 2)
    assert not pipeline.backbone.full
    pipeline.gate.set()
    pipeline.settled()
    pipeline.check_account()
    assert set(pipeline.backbone.ledger.counts().dropped) == {"overrun"}
    headers = [origin.header for origin, _ in pipeline.delivered]
    assert headers == sorted(headers)
    assert headers[-1] == 99


def test_when_the_head_is_slow_senders_are_made_to_wait(start: Start) -> None:
    pipeline = start(batch_size=1, pool_slots=1, drop_policy=BLOCK)
    told = threading.Event()
    pipeline.backbone.when_ready_for_more(told.set)
    pipeline.gate.clear()
    pipeline.send(1)
    until(lambda: len(pipeline.handles) == 1)
    pipeline.send(2)
    assert pipeline.backbone.full
    assert not pipeline.backbone.wait_for_room(0.01)
    told.clear()
    pipeline.gate.set()
    assert pipeline.backbone.wait_for_room(LONG_S)
    assert told.wait(LONG_S)
    pipeline.settled()
    pipeline.check_account()
    assert pipeline.backbone.ledger.counts().dropped == {}


def test_settings_change_while_frames_flow(start: Start) -> None:
    pipeline = start(batch_size=2, drop_policy=BLOCK)
    changes = [
        StageSettings(split_point, batch_size, 0.001, policy, slots)
        for split_point in ("input", "parts.1", "output")
        for batch_size, policy, slots in ((1, BLOCK, 1), (4, LATEST, 2))
    ]
    for value in range(240):
        if value % 20 == 0:
            pipeline.backbone.configure(changes[value // 20 % len(changes)])
            assert pipeline.backbone.settings == changes[value // 20 % len(changes)]
        pipeline.backbone.wait_for_room(LONG_S)
        pipeline.send(value)
        assert pipeline.backbone.ledger.counts().balanced
    pipeline.settled()
    pipeline.check_account()
    assert {handle.split_point for handle in pipeline.handles} == {"input", "parts.1", "output"}
    assert set(pipeline.backbone.ledger.counts().dropped) <= {"overrun"}
    assert pipeline.errors == []


def test_settings_that_do_not_fit_change_nothing(start: Start) -> None:
    pipeline = start(batch_size=2)
    before = pipeline.backbone.settings
    with pytest.raises(UnknownSplitPointError, match=r"parts\.1"):
        pipeline.backbone.configure(replace(before, split_point="parts.9", batch_size=1))
    with pytest.raises(ConfigurationError, match="batch_size"):
        pipeline.backbone.configure(replace(before, batch_size=1 << 50))
    assert pipeline.backbone.settings is before
    pipeline.send(5)
    pipeline.settled()
    pipeline.check_account()


def test_without_a_head_frames_are_dropped_by_that_name(start: Start) -> None:
    pipeline = start()
    pipeline.way.publish = lambda handle: 0
    pipeline.send(1, 2, 3)
    pipeline.settled()
    assert set(pipeline.backbone.ledger.counts().dropped) <= {"no_head", "overrun"}
    until(lambda: pipeline.backbone.report(0.0).slots_used == 0)


def test_a_head_that_never_comes_loses_its_lease(start: Start) -> None:
    pipeline = start(lease_s=0.01, pool_slots=1)
    lost: list[Handle] = []
    pipeline.way.publish = lambda handle: lost.append(handle) or 1  # type: ignore[func-returns-value]
    pipeline.send(1)
    pipeline.settled()
    assert pipeline.backbone.ledger.counts().dropped == {"lease_expired": 1}
    assert pipeline.backbone.report(time.monotonic()).batches == 0  # nothing was timed
    pipeline.hand(lost[0])  # it comes after all
    until(lambda: pipeline.head.refused.total() == 1)
    assert pipeline.head.refused == {"released": 1}
    assert isinstance(pipeline.errors[0], HandleError)
    pipeline.way.publish = pipeline.publish
    pipeline.send(2)
    pipeline.settled()
    pipeline.hand(lost[0])
    until(lambda: pipeline.head.refused.total() == 2)
    assert pipeline.head.refused == {"released": 1, "stale": 1}


def test_a_handle_is_read_once(start: Start) -> None:
    pipeline = start()
    pipeline.send(1)
    pipeline.settled()
    pipeline.hand(pipeline.handles[0])
    until(lambda: pipeline.head.refused.total() == 1)
    pool = find_pool(pipeline.handles[0].lease)
    for lease in (Lease(1, 0, 1), replace(pipeline.handles[0].lease, slot=99)):
        pipeline.head.submit(Handle(lease, "brightness", "input", 1, "", ()), pool)
    until(lambda: pipeline.head.refused.total() == 3)
    assert pipeline.head.refused == {"released": 1, "foreign": 2}
    with pytest.raises(HandleError) as refusal:
        find_pool(Lease(1, 0, 1))
    pipeline.head.refuse(refusal.value)
    assert pipeline.head.refused == {"released": 1, "foreign": 3}
    pipeline.check_account()


def test_a_batch_that_breaks_the_backbone_costs_only_itself(start: Start) -> None:
    pipeline = start()
    broken = Pixels(torch.zeros((4, 4, 2), dtype=torch.uint8), (0, 1, 2))
    pipeline.backbone.submit(broken, frame(0)[1], time.monotonic())
    pipeline.settled()
    assert pipeline.backbone.ledger.counts().dropped == {"backbone_error": 1}
    assert len(pipeline.errors) == 1
    pipeline.send(7)
    pipeline.settled()
    pipeline.check_account()
    assert len(pipeline.delivered) == 1


def test_a_result_that_cannot_be_delivered_costs_the_rest_of_its_batch(start: Start) -> None:
    pipeline = start(batch_size=3, batch_timeout_s=LONG_S)

    def deliver(handle: Handle, index: int, detections: Detections) -> None:
        origin = handle.origins[index]
        if origin.header == 2:
            raise RuntimeError("no more")
        pipeline.delivered.append((origin, detections))

    pipeline.head._deliver = deliver
    pipeline.send(1, 2, 3)
    pipeline.settled()
    assert pipeline.backbone.ledger.counts().dropped == {"head_error": 2}
    pipeline.send(4, 5, 6)
    pipeline.settled()
    pipeline.check_account()
    assert [origin.header for origin, _ in pipeline.delivered] == [1, 4, 5, 6]
    assert [str(error) for error in pipeline.errors] == ["no more"]


def test_what_no_detection_can_be_is_left_out_and_counted(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_all(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        boxes = torch.tensor([[0.0, 0.0, 4.0, 4.0], [0.0, torch.nan, 4.0, 4.0], [0.0, 0.0, 4.0, 4.0]])
        labels = torch.tensor([0, 0, 1])  # there is no label 1
        return [Detections(boxes, torch.full((3,), 0.5), labels) for _ in outputs[0]]

    pipeline = start(batch_size=2, batch_timeout_s=LONG_S)
    monkeypatch.setattr(pipeline.head, "_model", with_decode(decode_all))
    pipeline.send(1, 2)
    pipeline.settled()
    assert [found.boxes.tolist() for _, found in pipeline.delivered] == [[[0.0, 0.0, 4.0, 4.0]]] * 2
    assert pipeline.head.left_out == {"box_not_finite": 2, "unknown_label": 2}
    assert pipeline.errors == []


def test_more_candidates_than_memory_holds_cost_only_their_batch(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode_too_many(outputs: tuple[Tensor, ...], limits: Limits) -> list[Detections]:
        return suppress(Candidates(torch.empty((1, 1 << 56, 4)), outputs[0]), limits)

    pipeline = start()
    with monkeypatch.context() as patched:
        patched.setattr(pipeline.head, "_model", with_decode(decode_too_many))
        pipeline.send(1)
        pipeline.settled()
    assert pipeline.backbone.ledger.counts().dropped == {"head_error": 1}
    assert "memory" in str(pipeline.errors[0])
    pipeline.send(2)
    pipeline.settled()
    pipeline.check_account()
    assert [origin.header for origin, _ in pipeline.delivered] == [2]


def with_decode(function: Callable[[tuple[Tensor, ...], Limits], list[Detections]]) -> SplitModel:
    return SplitModel(replace(ENTRY, decode=function), Brightness(), CPU)


def test_a_publisher_that_fails_loses_nothing_that_a_head_has(start: Start) -> None:
    """The first handle reaches the head before publishing fails, the second does not."""
    pipeline = start(batch_size=1, drop_policy=BLOCK)
    arrived = threading.Event()

    def deliver(handle: Handle, index: int, detections: Detections) -> None:
        arrived.set()
        Pipeline.deliver(pipeline, handle, index, detections)

    def publish(handle: Handle) -> int:
        if handle.origins[0].header == 1:
            pipeline.hand(handle)
            assert arrived.wait(LONG_S)
        raise RuntimeError("the wire broke")

    pipeline.head._deliver = deliver
    pipeline.gate.clear()
    pipeline.way.publish = publish
    pipeline.send(1)
    until(lambda: len(pipeline.errors) == 1)
    pipeline.send(2)
    until(lambda: len(pipeline.errors) == 2)
    assert pipeline.backbone.ledger.counts().dropped == {"backbone_error": 1}
    pipeline.gate.set()
    pipeline.settled()
    pipeline.check_account()
    assert [origin.header for origin, _ in pipeline.delivered] == [1]


def test_another_models_handle_is_told_by_name(start: Start) -> None:
    pipeline = start()
    pipeline.way.publish = lambda handle: pipeline.publish(replace(handle, model="other"))
    pipeline.send(1)
    pipeline.settled()
    assert pipeline.backbone.ledger.counts().dropped == {"head_error": 1}
    (error,) = pipeline.errors
    assert isinstance(error, SplitInferError)
    assert "'other'" in str(error)
    assert "'brightness'" in str(error)


def test_before_start_and_after_stop_frames_are_counted_as_inactive(start: Start) -> None:
    pipeline = start()
    idle = BackboneStage(brightness(), StageSettings(), Way(pipeline.publish), pipeline.errors.append)
    idle.submit(*frame(1), 0.0)
    idle.refuse(ImageError(DropReason.BAD_STEP, "no"), 0.0)
    assert idle.ledger.counts().dropped == {"inactive": 1, "bad_step": 1}
    idle.stop(0.0)
    pipeline.backbone.stop(LONG_S)
    pipeline.send(1)
    assert pipeline.backbone.ledger.counts().dropped == {"inactive": 1}


def test_stop_lets_finish_what_is_in_flight(start: Start) -> None:
    pipeline = start(batch_size=4, batch_timeout_s=LONG_S)
    pipeline.send(1, 2, 3)  # not a full batch: draining closes it
    pipeline.backbone.stop(LONG_S)
    pipeline.check_account()
    assert len(pipeline.delivered) == 3


def test_stop_does_not_wait_for_a_head_that_is_stuck_and_starts_afresh(start: Start) -> None:
    pipeline = start(batch_size=1, pool_slots=3, drop_policy=BLOCK)
    pipeline.gate.clear()
    pipeline.send(1, 2, 3, 4, 5)
    until(lambda: len(pipeline.handles) == 3)
    pipeline.backbone.stop(0.01)
    counts = pipeline.backbone.ledger.counts()
    assert counts.dropped == {"shutdown": 5}
    assert counts.balanced
    pipeline.gate.set()  # the head comes back, and finds what it was promised gone
    until(lambda: pipeline.backbone.report(0.0).slots_used == 0)
    assert pipeline.backbone.ledger.counts() == counts
    pipeline.delivered.clear()
    pipeline.backbone.start()
    pipeline.send(6, 7)
    pipeline.settled()
    pipeline.check_account()
    assert [origin.header for origin, _ in pipeline.delivered] == [6, 7]


def test_stop_takes_slots_back_from_a_head_that_never_comes(start: Start) -> None:
    pipeline = start(batch_size=1, pool_slots=2, drop_policy=BLOCK)
    lost: list[Handle] = []
    pipeline.way.publish = lambda handle: lost.append(handle) or 1  # type: ignore[func-returns-value]
    pipeline.send(1, 2, 3)
    until(lambda: len(lost) == 2)
    pipeline.backbone.stop(0.01)
    assert pipeline.backbone.report(0.0).slots_used == 0
    assert pipeline.backbone.ledger.counts().dropped == {"shutdown": 3}


def test_a_head_starts_again_however_often_it_was_stopped(start: Start) -> None:
    pipeline = start()
    for value in range(3):
        pipeline.head.stop()
        pipeline.head.stop()
        pipeline.head.start()
        pipeline.send(value)
        pipeline.settled()
    pipeline.check_account()
    assert len(pipeline.delivered) == 3


def test_a_report_is_what_was_counted_and_timed(start: Start) -> None:
    begin = time.monotonic()
    pipeline = start(batch_size=2, batch_timeout_s=LONG_S, drop_policy=BLOCK)
    timelines: list[Timeline] = []
    done = pipeline.backbone._account.meters.batch_done

    def batch_done(timeline: Timeline, frames: int, now: float) -> None:
        timelines.append(timeline)
        done(timeline, frames, now)

    pipeline.backbone._account.meters.batch_done = batch_done  # type: ignore[method-assign]
    pipeline.send(1, 2, 3, 4)
    pipeline.settled()
    report = pipeline.backbone.report(time.monotonic())
    assert report.counts == pipeline.backbone.ledger.counts()
    assert (report.model, report.device, report.split_point) == ("brightness", "cpu", "parts.0")
    assert report.memory == "host"
    assert report.batches == len(pipeline.handles)
    assert report.batch_fill == 4 / report.batches
    assert report.slots_used == 0
    assert report.pool_bytes > 0
    assert len(timelines) == len(pipeline.handles)
    for times in timelines:
        stations = dataclasses.astuple(times)
        assert stations[0] > 0
        assert list(stations) == sorted(stations)
    assert 0 < report.latency_p50_s <= report.latency_p99_s
    assert report.backbone_s > 0
    assert report.hop_s > 0
    assert report.head_s > 0
    assert report.preprocess_s > 0
    assert report.postprocess_s > 0
    slices = [times.slices() for times in timelines]
    spent = {name: sum(each[name][1] - each[name][0] for each in slices) for name in slices[0]}
    assert spent["preprocess"] + spent["backbone"] <= report.backbone_busy_s <= report.time - begin  # one at a time
    assert max(spent["head"], spent["postprocess"]) <= report.head_busy_s <= spent["head"] + spent["postprocess"] + 1e-6


def test_many_senders_and_a_changing_mind(start: Start) -> None:
    pipeline = start(batch_size=2, pool_slots=2)
    looks: list[bool] = []

    def send(source: str) -> None:
        for value in range(100):
            pipeline.send(value, source=source)
            looks.append(pipeline.backbone.ledger.counts().balanced)

    senders = [threading.Thread(target=send, args=(source,)) for source in "abc"]
    for sender in senders:
        sender.start()
    for number in range(20):
        pipeline.backbone.configure(
            StageSettings("input" if number % 2 else "output", 1 + number % 3, 0.001, LATEST, 1 + number % 2)
        )
    for sender in senders:
        sender.join(LONG_S)
    pipeline.settled()
    pipeline.check_account()
    assert all(looks)
    assert pipeline.backbone.ledger.counts().received == 300
    assert pipeline.errors == []


def test_a_frame_costs_three_turns_of_the_loop(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes; its batch is closed and computed; its slot is given back. None of these causes a turn for nothing."""
    pipeline = start(batch_size=1)
    turns: list[float] = []
    collect = ModelInstance.collect
    monkeypatch.setattr(ModelInstance, "collect", lambda instance, now: (turns.append(now), collect(instance, now)))
    begin = time.monotonic()
    for value in range(20):
        pipeline.send(value)
        pipeline.settled()
    ticks = (time.monotonic() - begin) / TICK_S
    assert len(turns) <= 3 * 20 + ticks + 2


def test_a_handle_reaches_the_heads_queue_by_three_calls(start: Start) -> None:
    pipeline = start(batch_size=1)
    chains: list[list[str]] = []
    queue = pipeline.head._head

    class Queue:
        def put(self, work: object) -> None:
            chains.append([found.name for found in traceback.extract_stack()])
            queue.put(work)  # type: ignore[arg-type]

    pipeline.head._head = Queue()  # type: ignore[assignment]
    instance = pipeline.backbone._instance
    instance._connection = LocalTransport(pipeline.head.submit).connect(instance._released, lambda: None)
    pipeline.backbone.configure(replace(pipeline.backbone.settings, batch_size=2))
    pipeline.send(1, 2)
    pipeline.settled()
    pipeline.head._head = queue
    assert [chain[chain.index("hand_over") + 1 :] for chain in chains] == [["send", "submit", "put"]]
