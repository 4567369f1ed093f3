"""From a decision to an execution on the device."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import torch

from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.server.execution.merge_runner import MergeRunner
from split_infer_ros.server.handover import Execution, Handover
from split_infer_ros.server.in_flight import InFlightBatch
from split_infer_ros.server.preprocessing.loaded_batch import LoadedBatch
from split_infer_ros.split.stacked_model import StackedModel


class Executor:
    """Pre-processes and executes batches; a GPU is given the next execution while it is at this one.

    Args:
        changed: guards what is shared with other threads.
        runner: runs the executions.
        device: where.

    Attributes:
        depth: executions that may be given to it before the first of them is over.
    """

    def __init__(self, changed: threading.Condition, runner: MergeRunner, device: torch.device) -> None:
        self._changed = changed
        self._runner = runner
        self._copies = Stream(device)
        self._mapped: dict[str, Fence] = {}  # until then a model's latest features are read
        self.depth = 2 if runner.is_asynchronous else 1
        self._handover = Handover(runner.is_asynchronous)

    def start(self) -> None:
        """Starts, until ``stop``; may be started again."""
        self._handover.start()

    def stop(self) -> None:
        """Hands over all that was launched, then ends."""
        self._handover.stop()

    @torch.inference_mode()
    def execute(
        self, batches: Sequence[InFlightBatch], over: Callable[[], None], stack: StackedModel | None = None
    ) -> None:
        """Executes batches of as many models as one; on a GPU this returns before it is done.

        Args:
            batches: one of each model.
            over: called once they are handed over, or lost; the lock is held.
            stack: computes them as one network; None if each model computes its own batch.
        """
        loaded: dict[str, LoadedBatch] = {}
        left: dict[str, InFlightBatch] = {}
        for batch in batches:
            try:
                self._runner.set_threads(batch.owner.key)
                loaded[batch.owner.key] = batch.load()
                left[batch.owner.key] = batch
            except Exception as error:  # whatever one batch does, the others get their chance
                batch.owner.fail(batch, error)
        start, done = time.monotonic(), Fence()
        try:
            if left:
                done = self._launch(left, loaded, stack)
        except Exception as error:
            for batch in left.values():
                batch.owner.fail(batch, error)
            left = {}

        def all_over() -> None:
            with self._changed:
                over()
                self._changed.notify_all()

        self._handover.put(Execution(list(left.values()), start, done, all_over))

    def _launch(
        self, batches: dict[str, InFlightBatch], loaded: Mapping[str, LoadedBatch], stack: StackedModel | None
    ) -> Fence:
        """Has features left in the slots, and brought to the CPU; batches that failed are taken out."""
        inputs = {key: each.images for key, each in loaded.items()}
        fences = [each.ready for each in loaded.values()]
        fences += [self._mapped.pop(key) for key in loaded if key in self._mapped]
        launched = self._runner.launch(
            inputs,
            lambda key, features: batches[key].write(features),
            fences,
            lambda key, backbone, images: batches[key].compute(backbone, images),
            stack,
        )
        for key, error in launched.failed.items():
            batch = batches.pop(key)
            batch.owner.fail(batch, error)
        done = launched.done
        self._copies.wait_for(done)
        for key, batch in batches.items():
            fetched = batch.fetch(self._copies)
            if fetched is not None:
                done = fetched
                if batch.maps:
                    self._mapped[key] = fetched
        return done
