"""Calls that wait for the end of blocks: none is lost, and none is made inside a block."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from split_infer_ros.runtime.deferred_calls import DeferredCalls

LONG_S = 60.0


def on_another_thread(run: Callable[[], object]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_a_call_is_made_at_once_outside_of_blocks() -> None:
    calls, made = DeferredCalls(), []
    calls.give(lambda: made.append(1))
    with calls.holding():
        pass
    calls.give(lambda: made.append(2))
    assert made == [1, 2]


def test_calls_wait_for_the_end_of_the_last_block() -> None:
    calls, made = DeferredCalls(), []
    with calls.holding():
        with calls.holding():
            on_another_thread(lambda: calls.give(lambda: made.append(1)))
            calls.give(lambda: made.append(2))
        assert made == []
    assert made == [1, 2]


def test_a_call_may_give_another() -> None:
    """As a finalizer does that runs during a call."""
    calls, made = DeferredCalls(), []
    calls.give(lambda: calls.give(lambda: made.append(1)))
    assert made == [1]


def test_no_call_is_lost_among_many_threads() -> None:
    calls, made, inside = DeferredCalls(), [], []

    def work() -> None:
        for _ in range(300):
            with calls.holding():
                inside.append(1)
                calls.give(lambda: made.append(len(inside)))
                inside.pop()
            calls.give(lambda: made.append(len(inside)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert made == [0] * 4 * 600


def test_a_call_that_was_made_is_not_kept() -> None:
    class Kept:
        """What a call refers to."""

    calls, kept = DeferredCalls(), Kept()
    reference = weakref.ref(kept)
    calls.give(lambda kept=kept: None)
    del kept
    assert reference() is None
