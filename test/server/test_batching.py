"""Which frames make the next batch, and when, as long as no costs are known."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.images.encodings import Pixels
from split_infer_ros.server.frame import Origin
from split_infer_ros.server.schedule.execution_costs import ExecutionCosts
from split_infer_ros.server.schedule.scheduler import Rules, decide, due_at
from split_infer_ros.server.settings import DropPolicy
from split_infer_ros.server.tenant import Tenant
from split_infer_ros.server.tenant_state import TenantFrame, TenantState, WaitingFrames

UNKNOWN = ExecutionCosts({}, {})
PIXELS = Pixels(np.zeros((1, 1, 3), np.uint8), (0, 1, 2))


def policy(keep_latest: bool) -> DropPolicy:
    return DropPolicy.LATEST if keep_latest else DropPolicy.BLOCK


class Batcher:
    """One tenant's frames, served by rule. A frame is a header; its camera is the tenant's source."""

    def __init__(self, batch_size: int, timeout_s: float, keep_latest: bool = True) -> None:
        self.tenant = TenantState(tenant=Tenant("", "m"), model="m")
        self.waiting = WaitingFrames(batch_size, policy(keep_latest))
        self.rules = Rules(batch_size, batch_size, timeout_s=timeout_s)

    def __len__(self) -> int:
        return len(self.waiting)

    @property
    def full(self) -> bool:
        return self.waiting.is_full(self.tenant)

    def add(self, header: Any, camera: str, now: float) -> list[Any]:
        frame = TenantFrame(PIXELS, Origin(header, camera, 1, 1), self.tenant.ledger.receive(now), self.tenant)
        return headers(self.waiting.add(frame, now, 0.0))

    def configure(self, *, batch_size: int, timeout_s: float, keep_latest: bool) -> list[Any]:
        self.rules = Rules(batch_size, batch_size, timeout_s=timeout_s)
        return headers(self.waiting.configure(batch_size, policy(keep_latest)))

    def ready_at(self) -> float | None:
        return due_at(self.waiting.of_models({"m"}), UNKNOWN, self.rules).get("m")

    def take(self) -> list[Any]:
        decision = decide(self.waiting.of_models({"m"}), UNKNOWN, now=0.0, rules=self.rules)
        return headers(self.waiting.take(decision.requests))

    def clear(self) -> list[Any]:
        return headers(self.waiting.clear())


def headers(frames: list[TenantFrame]) -> list[Any]:
    return [frame.origin.header for frame in frames]


def simulate(batcher: Batcher, arrivals: dict[float, str], end: float) -> dict[float, str]:
    """Closes each batch as soon as it may be, and returns the batches by that time.

    A frame's name is the letter of its camera and a number.
    """
    batches = {}
    pending = sorted(arrivals.items())
    while True:
        due = batcher.ready_at()
        if due is not None and (not pending or due <= pending[0][0]):
            if due > end:
                return batches
            batches[due] = " ".join(map(str, batcher.take()))
        elif pending:
            now, frame = pending.pop(0)
            assert batcher.add(frame, frame[0], now) == [], "no frame is displaced while batches are taken at once"
        else:
            return batches


def test_full_batch_is_closed_at_once() -> None:
    arrivals = {0.0: "a1", 1.0: "b1", 2.0: "a2", 3.0: "b2", 4.0: "a3"}
    batcher = Batcher(2, 10.0)
    # a full batch is due since its oldest frame arrived
    assert simulate(batcher, arrivals, end=5.0) == {0.0: "a1 b1", 2.0: "a2 b2"}
    assert batcher.ready_at() == 14.0


def test_smaller_batch_is_closed_after_the_timeout() -> None:
    arrivals = {0.0: "a1", 4.0: "b1", 9.5: "a2", 20.0: "a3", 29.0: "b2"}
    assert simulate(Batcher(4, 10.0), arrivals, end=100.0) == {10.0: "a1 b1 a2", 30.0: "a3 b2"}


def test_frame_that_arrives_at_the_timeout_joins_the_next_batch() -> None:
    arrivals = {0.0: "a1", 10.0: "a2"}
    assert simulate(Batcher(4, 10.0), arrivals, end=100.0) == {10.0: "a1", 20.0: "a2"}


def test_without_a_timeout_each_frame_is_a_batch() -> None:
    arrivals = {0.0: "a1", 1.0: "b1"}
    assert simulate(Batcher(4, 0.0), arrivals, end=9.0) == {0.0: "a1", 1.0: "b1"}


def test_silent_camera_delays_no_batch() -> None:
    """Camera c sends only one frame."""
    arrivals = {0.0: "a1", 0.5: "b1", 1.0: "c1", 30.0: "a2", 30.5: "b2", 60.0: "a3", 60.5: "b3"}
    assert simulate(Batcher(3, 10.0), arrivals, end=100.0) == {
        0.0: "a1 b1 c1",
        40.0: "a2 b2",
        70.0: "a3 b3",
    }


def test_flooding_camera_displaces_only_its_own_frames() -> None:
    """No batch is taken, because the head is slow. Camera f sends ten times a second, camera b once."""
    batcher = Batcher(4, 100.0)
    displaced: list[str] = []
    for tick in range(30):
        displaced += batcher.add(f"f{tick}", "f", tick / 10)
        if tick % 10 == 5:
            displaced += batcher.add(f"b{tick}", "b", tick / 10)
    assert [frame for frame in displaced if frame[0] == "b"] == ["b5"]  # displaced by its own b25
    assert batcher.take() == ["b15", "b25", "f28", "f29"]


def test_camera_with_most_waiting_frames_is_displaced() -> None:
    batcher = Batcher(3, 1.0)
    assert batcher.add("a1", "a", 0.0) == []
    assert batcher.add("b1", "b", 1.0) == []
    assert batcher.add("b2", "b", 2.0) == []
    assert batcher.add("c1", "c", 3.0) == ["b1"]  # b has most frames waiting, and its oldest goes
    assert batcher.add("a2", "a", 4.0) == ["a1"]
    assert batcher.take() == ["b2", "c1", "a2"]


def test_newest_frame_of_each_camera_waits() -> None:
    batcher = Batcher(1, 1.0)
    assert [batcher.add(frame, frame[0], 0.0) for frame in ("a1", "b1", "c1", "b2")] == [[], [], [], ["b1"]]
    assert [batcher.take() for _ in range(4)] == [["a1"], ["b2"], ["c1"], []]


def test_cameras_in_phase_are_served_in_turn() -> None:
    """Three cameras send at the same moments, and more than can be served."""
    batcher = Batcher(1, 0.0)
    served: list[str] = []
    for step in range(90):
        if step % 2 == 0:
            for camera in "abc":
                batcher.add(f"{camera}{step}", camera, float(step))
        served += batcher.take()
    assert Counter(frame[0] for frame in served) == {"a": 30, "b": 30, "c": 30}
    assert all(int(frame[1:]) >= step - 3 for step, frame in enumerate(served)), "a frame waits for one round at most"


def test_without_keep_latest_no_frame_is_displaced() -> None:
    batcher = Batcher(2, 1.0, keep_latest=False)
    for number in range(5):
        assert batcher.add(f"a{number}", "a", float(number)) == []
        assert batcher.full == (number >= 1)
    assert [batcher.take() for _ in range(4)] == [["a0", "a1"], ["a2", "a3"], ["a4"], []]


def test_shorter_timeout_applies_to_waiting_frames() -> None:
    batcher = Batcher(4, 10.0)
    batcher.add("a1", "a", 5.0)
    assert batcher.ready_at() == 15.0
    assert batcher.configure(batch_size=4, timeout_s=2.0, keep_latest=True) == []
    assert batcher.ready_at() == 7.0


def test_smaller_batch_size_displaces_only_with_keep_latest() -> None:
    for keep_latest, displaced, batch in ((True, ["a0", "a1"], ["a2", "a3"]), (False, [], ["a0", "a1"])):
        batcher = Batcher(4, 1.0, keep_latest)
        for number in range(4):
            batcher.add(f"a{number}", "a", float(number))
        assert batcher.configure(batch_size=2, timeout_s=1.0, keep_latest=keep_latest) == displaced
        assert batcher.take() == batch


def test_clear_removes_all_frames() -> None:
    batcher = Batcher(4, 1.0)
    batcher.add("a1", "a", 0.0)
    batcher.add("b1", "b", 1.0)
    assert batcher.clear() == ["a1", "b1"]
    assert len(batcher) == 0
    assert batcher.ready_at() is None


steps = st.one_of(
    st.sampled_from("abc"),  # a frame of that camera
    st.just("take"),
    st.tuples(st.integers(1, 5), st.booleans()),  # configure
)


@given(batch_size=st.integers(1, 5), keep_latest=st.booleans(), steps=st.lists(steps, max_size=40))
def test_each_frame_comes_out_once_and_in_order(
    batch_size: int, keep_latest: bool, steps: list[str | tuple[int, bool]]
) -> None:
    batcher = Batcher(batch_size=batch_size, timeout_s=1.0, keep_latest=keep_latest)
    sent: list[tuple[str, int]] = []
    taken: list[tuple[str, int]] = []
    displaced: list[tuple[str, int]] = []
    for now, step in enumerate(steps):
        if step == "take":
            batch = batcher.take()
            assert len(batch) <= batch_size
            taken += batch
        elif isinstance(step, str):
            sent.append((step, now))
            displaced += batcher.add(sent[-1], step, float(now))
        else:
            batch_size, keep_latest = step
            displaced += batcher.configure(batch_size=batch_size, timeout_s=1.0, keep_latest=keep_latest)
        assert len(taken) + len(displaced) + len(batcher) == len(sent)
        if keep_latest:
            assert len(batcher) <= max(batch_size, len("abc"))
    for camera in "abc":
        times = [now for source, now in taken if source == camera]
        assert times == sorted(times)
    assert sorted(taken + displaced + batcher.clear()) == sorted(sent)
