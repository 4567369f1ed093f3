"""The stream sanitizer as tests on a GPU use it; what it notes needs no GPU."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stream_sanitizer import check_every_thread

MAIN, OTHER, WRITTEN = 5, 6, 7  # streams, and the address of a tensor


class Graph:
    """A recording that ends without a GPU."""

    def capture_end(self) -> None:
        pass


class Event:
    """A point in the work of a stream, which has passed or not."""

    cuda_event = 8

    def __init__(self, passed: bool) -> None:
        self._passed = passed

    def query(self) -> bool:
        return self._passed


def write(handler: Any, stream: int, address: int = WRITTEN) -> list[Exception]:
    """What the sanitizer says of an operation that writes to an address."""
    found: list[Exception] = handler._handle_kernel_launch(stream, set(), {address}, set(), "write", {address: []})
    return found


@pytest.fixture
def handler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The sanitizer of this process, which has seen nothing."""
    sanitizer = pytest.importorskip("torch.cuda._sanitizer")
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=MAIN))
    made = sanitizer.EventHandler()
    monkeypatch.setattr(sanitizer.cuda_sanitizer.dispatch, "event_handler", made)
    check_every_thread(monkeypatch)
    return made


def test_writes_on_two_streams_are_a_race(handler: Any) -> None:
    assert write(handler, MAIN) == []
    (error,) = write(handler, OTHER)
    assert "possible data race" in str(error)


def test_recorded_operations_race_with_nothing(handler: Any) -> None:
    assert write(handler, MAIN) == []
    torch.cuda.CUDAGraph().capture_end()
    assert write(handler, OTHER) == []


@pytest.mark.parametrize("passed", [True, False])
def test_event_that_was_asked_and_has_passed_counts_as_waited_for(handler: Any, passed: bool) -> None:
    assert write(handler, MAIN) == []
    handler._handle_event_record(Event.cuda_event, MAIN)
    assert torch.cuda.Event(passed).query() is passed
    assert len(write(handler, OTHER)) == (0 if passed else 1)


def test_operations_of_other_threads_are_checked(handler: Any) -> None:
    with ThreadPoolExecutor(1) as executor:
        executor.submit(torch.ones, 1).result()
    assert handler.seq_num == 1


def test_threads_do_not_take_each_others_numbers(handler: Any) -> None:
    def launch(stream: int) -> None:
        for _ in range(100):
            write(handler, stream, stream)
            access = handler.tensors_accessed.get_write(stream)
            assert access.seq_num == handler.syncs.current_sync_states[stream][stream]
            handler.syncs.sync_all_streams()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as executor:
            list(executor.map(launch, range(100, 104)))
    finally:
        sys.setswitchinterval(interval)
