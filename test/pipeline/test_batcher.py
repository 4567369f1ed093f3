"""Timelines, each a small table: at this time this happens, and so much comes of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.pipeline.batcher import Batcher


def play(batcher: Batcher[str], arrivals: dict[float, str], end: float) -> dict[float, str]:
    """Batches by the time they are closed, each as soon as it may be; a frame is named by its camera and a number."""
    batches = {}
    waiting = sorted(arrivals.items())
    while True:
        due = batcher.ready_at()
        if due is not None and (not waiting or due <= waiting[0][0]):
            if due > end:
                return batches
            batches[due] = " ".join(batcher.take())
        elif waiting:
            now, frame = waiting.pop(0)
            assert batcher.add(frame, frame[0], now) == [], "nothing gives way while batches are taken at once"
        else:
            return batches


def test_a_full_batch_goes_at_once() -> None:
    arrivals = {0.0: "a1", 1.0: "b1", 2.0: "a2", 3.0: "b2", 4.0: "a3"}
    batcher: Batcher[str] = Batcher(batch_size=2, timeout_s=10.0, keep_latest=True)
    # what is full is due since its oldest frame came
    assert play(batcher, arrivals, end=5.0) == {0.0: "a1 b1", 2.0: "a2 b2"}
    assert batcher.ready_at() == 14.0


def test_a_batch_that_does_not_fill_goes_when_its_oldest_frame_has_waited_enough() -> None:
    arrivals = {0.0: "a1", 4.0: "b1", 9.5: "a2", 20.0: "a3", 29.0: "b2"}
    assert play(Batcher(batch_size=4, timeout_s=10.0, keep_latest=True), arrivals, end=100.0) == {
        10.0: "a1 b1 a2",
        30.0: "a3 b2",
    }


def test_a_frame_that_comes_at_the_very_instant_waits_for_the_next_batch() -> None:
    assert play(Batcher(batch_size=4, timeout_s=10.0, keep_latest=True), {0.0: "a1", 10.0: "a2"}, end=100.0) == {
        10.0: "a1",
        20.0: "a2",
    }


def test_without_a_timeout_each_frame_goes_alone() -> None:
    assert play(Batcher(batch_size=4, timeout_s=0.0, keep_latest=True), {0.0: "a1", 1.0: "b1"}, end=9.0) == {
        0.0: "a1",
        1.0: "b1",
    }


def test_a_silent_camera_holds_nobody_up() -> None:
    """Camera c never comes after its first frame."""
    arrivals = {0.0: "a1", 0.5: "b1", 1.0: "c1", 30.0: "a2", 30.5: "b2", 60.0: "a3", 60.5: "b3"}
    assert play(Batcher(batch_size=3, timeout_s=10.0, keep_latest=True), arrivals, end=100.0) == {
        0.0: "a1 b1 c1",
        40.0: "a2 b2",
        70.0: "a3 b3",
    }


def test_a_flooding_camera_displaces_itself_alone() -> None:
    """No batch is taken meanwhile: the head is slow. f sends ten times a second, b once."""
    batcher: Batcher[str] = Batcher(batch_size=4, timeout_s=100.0, keep_latest=True)
    gone: list[str] = []
    for tick in range(30):
        gone += batcher.add(f"f{tick}", "f", tick / 10)
        if tick % 10 == 5:
            gone += batcher.add(f"b{tick}", "b", tick / 10)
    assert [frame for frame in gone if frame[0] == "b"] == ["b5"]  # for its own b25
    assert batcher.take() == ["b15", "b25", "f28", "f29"]


def test_who_gives_way() -> None:
    batcher: Batcher[str] = Batcher(batch_size=3, timeout_s=1.0, keep_latest=True)
    assert batcher.add("a1", "a", 0.0) == []
    assert batcher.add("b1", "b", 1.0) == []
    assert batcher.add("b2", "b", 2.0) == []
    assert batcher.add("c1", "c", 3.0) == ["b1"]  # b has most waiting; its oldest goes
    assert batcher.add("a2", "a", 4.0) == ["a1"]
    assert batcher.take() == ["b2", "c1", "a2"]


def test_who_blocks_loses_nothing() -> None:
    batcher: Batcher[str] = Batcher(batch_size=2, timeout_s=1.0, keep_latest=False)
    for number in range(5):
        assert batcher.add(f"a{number}", "a", float(number)) == []
        assert batcher.full == (number >= 1)
    assert [batcher.take() for _ in range(4)] == [["a0", "a1"], ["a2", "a3"], ["a4"], []]


def test_a_shorter_timeout_acts_on_what_already_waits() -> None:
    batcher: Batcher[str] = Batcher(batch_size=4, timeout_s=10.0, keep_latest=True)
    batcher.add("a1", "a", 5.0)
    assert batcher.ready_at() == 15.0
    assert batcher.configure(batch_size=4, timeout_s=2.0, keep_latest=True) == []
    assert batcher.ready_at() == 7.0


def test_a_smaller_batch_sends_the_oldest_away_or_leaves_them_waiting() -> None:
    for keep_latest, gone, batch in ((True, ["a0", "a1"], ["a2", "a3"]), (False, [], ["a0", "a1"])):
        batcher: Batcher[str] = Batcher(batch_size=4, timeout_s=1.0, keep_latest=keep_latest)
        for number in range(4):
            batcher.add(f"a{number}", "a", float(number))
        assert batcher.configure(batch_size=2, timeout_s=1.0, keep_latest=keep_latest) == gone
        assert batcher.take() == batch


def test_clear_leaves_nothing() -> None:
    batcher: Batcher[str] = Batcher(batch_size=4, timeout_s=1.0, keep_latest=True)
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
    batcher: Batcher[tuple[str, int]] = Batcher(batch_size=batch_size, timeout_s=1.0, keep_latest=keep_latest)
    sent: list[tuple[str, int]] = []
    taken: list[tuple[str, int]] = []
    gone: list[tuple[str, int]] = []
    for now, step in enumerate(steps):
        if step == "take":
            batch = batcher.take()
            assert len(batch) <= batch_size
            taken += batch
        elif isinstance(step, str):
            sent.append((step, now))
            gone += batcher.add(sent[-1], step, float(now))
        else:
            batch_size, keep_latest = step
            gone += batcher.configure(batch_size=batch_size, timeout_s=1.0, keep_latest=keep_latest)
        assert len(taken) + len(gone) + len(batcher) == len(sent)
        if keep_latest:
            assert len(batcher) <= batch_size
    assert taken == sorted(taken, key=lambda frame: frame[1])
    assert sorted(taken + gone + batcher.clear()) == sorted(sent)
