"""Threads that compute give way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from split_infer_ros.runtime.priority import BACKBONE, HEAD, give_way

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux alone has a value for each thread")


def nice() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def on_a_thread(work: Callable[[], list[int]]) -> list[int]:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()


def test_a_thread_gives_way_once_and_the_others_do_not() -> None:
    usual = nice()

    def work() -> list[int]:
        found = []
        for by in (HEAD, HEAD, BACKBONE):
            give_way(by)
            found.append(nice())
        return found

    expected = [min(19, usual + by) for by in (HEAD, HEAD, BACKBONE)]
    assert on_a_thread(work) == expected
    assert nice() == usual


def test_a_thread_that_was_started_by_such_a_thread_gives_way_no_further() -> None:
    def work() -> list[int]:
        give_way(BACKBONE)
        return [nice()]

    usual = nice()
    assert on_a_thread(lambda: [*work(), *on_a_thread(work)]) == [min(19, usual + BACKBONE)] * 2


def test_threads_that_it_starts_give_way_as_well() -> None:
    def work() -> list[int]:
        give_way(BACKBONE)
        return on_a_thread(lambda: [nice()])

    assert on_a_thread(work) == [min(19, nice() + BACKBONE)]
