"""From the end of an execution on the device to the heads that are told of its batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.streams import Fence
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.in_flight import InFlightBatch


@dataclass(frozen=True, slots=True)
class Execution:
    """Batches that were launched as one.

    Attributes:
        batches: of different models.
        start: when they were launched, seconds of the steady clock.
        done: from here on their features are in the slots.
        over: called once all are handed over or lost.
    """

    batches: Sequence[InFlightBatch]
    start: float
    done: Fence
    over: Callable[[], None]


class Handover:
    """Waits for executions in their order, then hands their batches over.

    Args:
        is_asynchronous: whether the device works behind the thread that launches. If so, a thread of this object
            waits; if not, ``put`` does all of it.
    """

    def __init__(self, is_asynchronous: bool) -> None:
        self._last_end = 0.0
        self._thread = WorkerThread("handover", self._finish, use_one_thread) if is_asynchronous else None

    def start(self) -> None:
        """Starts, until ``stop``; may be started again."""
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """Finishes all executions that were put, then ends."""
        if self._thread is not None:
            self._thread.stop()

    def put(self, execution: Execution) -> None:
        """Takes an execution that was launched."""
        if self._thread is not None:
            self._thread.put(execution)
        else:
            self._finish(execution)

    def _finish(self, execution: Execution) -> None:
        failure: Exception | None = None
        try:
            execution.done.wait()
        except Exception as error:
            failure = error
        # A GPU began with this execution when it was done with the one before.
        start, end = max(execution.start, self._last_end), time.monotonic()
        self._last_end = end
        for batch in execution.batches:
            batch.timeline.backbone_start, batch.timeline.backbone_end = start, end
            try:
                if failure is not None:
                    raise failure
                batch.owner.hand_over(batch)
            except Exception as error:  # whatever one batch does, the others get their chance
                batch.owner.fail(batch, error)
        execution.over()
