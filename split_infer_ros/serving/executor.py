"""From a decision to features in slots, and the heads that are told of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from split_infer_ros.pipeline.preprocessor import Loaded
from split_infer_ros.runtime.faults import drop_reason
from split_infer_ros.runtime.num_threads import use_one_core
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.runtime.worker_thread import Stage
from split_infer_ros.serving.in_flight import InFlightBatch
from split_infer_ros.serving.merge_runner import MergeRunner
from split_infer_ros.serving.tenant_state import drop


@dataclass(frozen=True, slots=True)
class _Execution:
    """Batches that were launched as one."""

    flights: Sequence[InFlightBatch]
    over: Callable[[], None]
    start: float
    done: Fence


class Executor:
    """Pre-processes and executes; a GPU is given the next execution while it is at this one.

    Args:
        changed: guards what is shared with other threads.
        engine: that executes.
        device: where.
        on_error: the model's name and an exception that cost frames.

    Attributes:
        depth: executions that may be given to it before the first of them is over.
    """

    def __init__(
        self,
        changed: threading.Condition,
        engine: MergeRunner,
        device: torch.device,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._changed = changed
        self._engine = engine
        self._on_error = on_error
        self._copies = Stream(device)
        self._mapped: dict[str, Fence] = {}  # until then a model's latest features are read
        self._last_end = 0.0
        self.depth = 2 if engine.is_asynchronous else 1
        self._behind = Stage("handover", self._hand_over, use_one_core) if engine.is_asynchronous else None

    def start(self) -> None:
        """Before executions, until stop; may be started again."""
        if self._behind is not None:
            self._behind.start()

    def stop(self) -> None:
        """Once all that was launched is handed over."""
        if self._behind is not None:
            self._behind.stop()

    @torch.inference_mode()
    def execute(self, flights: Sequence[InFlightBatch], over: Callable[[], None]) -> None:
        """Batches of as many models, as one; on a GPU this returns before it is done.

        Args:
            flights: the batches.
            over: called once they are handed over, or lost; the lock is held.
        """
        loaded: dict[str, Loaded] = {}
        left: dict[str, InFlightBatch] = {}
        for flight in flights:
            try:
                loaded[flight.line.key] = flight.load()
                left[flight.line.key] = flight
            except Exception as error:  # whatever one batch does, the others get their chance
                self._fail(flight, error)
        start, done = time.monotonic(), Fence()
        try:
            if left:
                done = self._launch(left, loaded)
        except Exception as error:
            for flight in left.values():
                self._fail(flight, error)
            left = {}
        execution = _Execution(list(left.values()), over, start, done)
        if self._behind is not None:
            self._behind.put(execution)
        else:
            self._hand_over(execution)

    def _launch(self, flights: dict[str, InFlightBatch], loaded: Mapping[str, Loaded]) -> Fence:
        """Have features left in the slots, and brought to the CPU; flights that failed are taken out."""
        inputs = {key: batch.images for key, batch in loaded.items()}
        fences = [batch.ready for batch in loaded.values()]
        fences += [self._mapped.pop(key) for key in loaded if key in self._mapped]
        launched = self._engine.launch(inputs, lambda key, features: flights[key].leave(features), fences)
        for key, error in launched.failed.items():
            self._fail(flights.pop(key), error)
        done = launched.done
        self._copies.wait_for(done)
        for key, flight in flights.items():
            brought = flight.bring(self._copies)
            if brought is not None:
                done = brought
                if flight.maps:
                    self._mapped[key] = brought
        return done

    def _hand_over(self, execution: _Execution) -> None:
        """Once the features are in the slots, the heads are told."""
        failure: Exception | None = None
        try:
            execution.done.wait()
        except Exception as error:
            failure = error
        start, end = max(execution.start, self._last_end), time.monotonic()
        self._last_end = end
        for flight in execution.flights:
            flight.timeline.backbone_start, flight.timeline.backbone_end = start, end
            try:
                if failure is not None:
                    raise failure
                flight.line.hand_over(flight)
            except Exception as error:
                self._fail(flight, error)
            else:
                flight.leave_backbone()
        with self._changed:
            execution.over()
            self._changed.notify_all()

    def _fail(self, flight: InFlightBatch, error: Exception) -> None:
        """A batch is lost, unless a head has it already."""
        flight.line.failure = str(error)
        flight.leave_backbone()
        if flight.plan.pool.give_up(flight.lease):
            with self._changed:
                flight.line.out.pop(flight.lease, None)
                drop(flight.settle_rest(), drop_reason(error))
                self._changed.notify_all()
        self._on_error(flight.line.key, error)
