"""From a closed batch to its features in the slot."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

from split_infer_ros.engines.engine import Engine
from split_infer_ros.pipeline.handover import Execution, Handover
from split_infer_ros.pipeline.in_flight import InFlightBatch
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.runtime.worker_thread import WorkerThread


class BackboneRunner:
    """Pre-processes and computes batches in their order.

    On a CPU the thread that calls ``run`` does all of it, as the stages would only share the cores. A GPU is given the
    next batch while it computes this one: a second thread launches, and a third waits for each batch to be done.

    Args:
        device: where the backbone runs.
        over: called once a batch was handed over or lost.
        num_threads: of the backbone's operations on a CPU; 0: all.
        engine: what executes the backbone.

    Attributes:
        depth: so many batches may be in ``run`` and behind it.
        set_up: to be called on the thread that calls ``run``.
    """

    def __init__(
        self,
        device: torch.device,
        over: Callable[[], None],
        *,
        num_threads: int = 0,
        engine: Engine = Engine.TORCH,
    ) -> None:
        self._stream, self._copies = Stream(device), Stream(device)
        self._over = over
        behind = self._stream.is_asynchronous
        self.depth = 3 if behind else 1
        self.set_up = use_one_thread if behind else partial(engine.use_threads, num_threads)
        self._launch = WorkerThread("backbone", self._compute, use_one_thread) if behind else None
        self._handover = Handover(behind)

    def start(self, plan: Plan) -> None:
        """Warms up, then starts, until ``stop``; may be started again."""
        # With as many threads as later: what is made for a number of them would else be made anew while frames flow.
        with ThreadPoolExecutor(1, initializer=self.set_up) as executor:
            executor.submit(plan.warm_up, self._stream, self._copies).result()
        self._handover.start()
        if self._launch is not None:
            self._launch.start()

    def run(self, batch: InFlightBatch) -> None:
        """Has a batch pre-processed, computed and handed over; on a GPU returns before it is computed."""
        try:
            with torch.inference_mode():
                batch.load()
        except Exception as error:  # whatever one batch does, the next one gets its chance
            self._fail(batch, error)
            return
        if self._launch is not None:
            self._launch.put(batch)
        else:
            self._compute(batch)

    def stop(self) -> None:
        """Finishes all that came in, then ends."""
        if self._launch is not None:
            self._launch.stop()
        self._handover.stop()

    def _compute(self, batch: InFlightBatch) -> None:
        assert batch.loaded is not None
        start = time.monotonic()
        try:
            done = batch.plan.run(
                batch.loaded, batch.lease, count=len(batch.frames), stream=self._stream, copy_stream=self._copies
            )
        except Exception as error:
            self._fail(batch, error)
        else:
            self._handover.put(Execution([batch], start, done, self._over))

    def _fail(self, batch: InFlightBatch, error: Exception) -> None:
        batch.owner.fail(batch, error)
        self._over()
