from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from split_infer_ros.runtime import num_threads


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(num_threads, "_MAX_THREADS", 2)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_each_thread_keeps_its_own_number_of_threads() -> None:
    turn = threading.Barrier(2)
    seen: dict[str, int] = {}

    def stage(name: str, use: Callable[[], None], first: bool) -> None:
        if not first:
            turn.wait()
        use()
        if first:
            turn.wait()
        turn.wait()
        torch.ones(100_000).add_(1)  # the first operation of this thread
        seen[name] = torch.get_num_threads()

    threads = [
        threading.Thread(target=stage, args=("head", num_threads.use_one_thread, True)),
        threading.Thread(target=stage, args=("backbone", num_threads.use_all_threads, False)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {"head": 1, "backbone": 2}


def test_a_threads_number_can_change() -> None:
    num_threads.use_one_thread()
    assert torch.get_num_threads() == 1
    num_threads.use_all_threads()
    assert torch.get_num_threads() == 2
