from __future__ import annotations

import threading

from split_infer_ros.runtime.worker_thread import WorkerThread

LONG_S = 60.0


def test_work_is_processed_in_order_and_stop_finishes_it() -> None:
    done: list[tuple[int, str]] = []
    begun = threading.Event()
    stage: WorkerThread[int] = WorkerThread(
        "s", lambda work: done.append((work, threading.current_thread().name)), begun.set
    )
    stage.put(0)  # work may come before the start
    assert len(stage) == 1
    stage.start()
    assert begun.wait(LONG_S)
    for work in range(1, 100):
        stage.put(work)
    stage.stop()
    assert done == [(work, "s") for work in range(100)]


def test_a_worker_can_be_stopped_twice_and_restarted() -> None:
    done: list[int] = []
    stage: WorkerThread[int] = WorkerThread("s", done.append, lambda: None)
    stage.stop()
    for value in range(3):
        stage.start()
        stage.put(value)
        stage.stop()
        stage.stop()
    assert done == [0, 1, 2]


def test_a_worker_that_hangs_is_left_alone() -> None:
    gate, done = threading.Event(), list[int]()

    def process(work: int) -> None:
        if work == 0:
            assert gate.wait(LONG_S)
        done.append(work)

    stage: WorkerThread[int] = WorkerThread("s", process, lambda: None)
    stage.start()
    stage.put(0)
    assert not stage.stop(0.01)
    stage.start()
    stage.put(1)
    assert stage.stop(LONG_S)
    assert done == [1]
    gate.set()
