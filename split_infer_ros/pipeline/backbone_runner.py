"""The stages between the closing of a batch and its features in the slot."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import torch

from split_infer_ros.buffers.slots import Lease
from split_infer_ros.pipeline.frame import Frame, Timeline
from split_infer_ros.pipeline.plan import Plan
from split_infer_ros.pipeline.preprocessor import Loaded
from split_infer_ros.runtime.num_threads import use_all_threads, use_one_thread, use_threads
from split_infer_ros.runtime.streams import Fence, Stream
from split_infer_ros.runtime.worker_thread import WorkerThread


@dataclass(slots=True, eq=False)
class Batch:
    """Frames that share a slot, from the closing of the batch until a head is done with it."""

    plan: Plan
    lease: Lease
    frames: list[Frame]
    timeline: Timeline = field(default_factory=Timeline)
    loaded: Loaded | None = None
    computed: Fence = field(default_factory=Fence)


class BackboneRunner:
    """Pre-processing on the caller's thread, then the backbone on its own.

    A GPU is given the next batch while it is still at this one; a thread more waits for each to be done.

    Args:
        device: where the backbone runs.
        done: called with each batch whose features are in its slot.
        failed: called with a batch that ``run`` or ``done`` could not cope with, and why.
        threads: cores that the backbone's operations may use on a CPU; 0: all.

    Attributes:
        depth: so many batches may be on their way here; on a CPU one, as its stages would but share the cores.
    """

    def __init__(
        self,
        device: torch.device,
        done: Callable[[Batch], None],
        failed: Callable[[Batch, Exception], None],
        threads: int = 0,
    ) -> None:
        self._stream, self._copies = Stream(device), Stream(device)
        self._done = done
        self._failed = failed
        self._last_end = 0.0
        behind = self._stream.is_asynchronous
        self.depth = 3 if behind else 1
        self._set_up = use_one_thread if behind else partial(use_threads, threads) if threads else use_all_threads
        self._backbone = WorkerThread("backbone", self._compute, self._set_up)
        self._hand_over = WorkerThread("handover", self._finish, use_one_thread) if behind else None

    def start(self, plan: Plan) -> None:
        """Warm up, then run, until stop; may be started again."""
        # On as many cores as later: what is made for a number of them would else be made again while frames flow.
        with ThreadPoolExecutor(1, initializer=self._set_up) as executor:
            executor.submit(plan.warm_up, self._stream, self._copies).result()
        if self._hand_over is not None:
            self._hand_over.start()
        self._backbone.start()

    def run(self, batch: Batch) -> None:
        """Pre-process, and leave the rest to the stages behind."""
        try:
            with torch.inference_mode():
                batch.loaded = batch.plan.preprocessor.load([frame.pixels for frame in batch.frames])
        except Exception as error:  # whatever one batch does, the next one gets its chance
            self._failed(batch, error)
            return
        batch.timeline.preprocessed = time.monotonic()
        self._backbone.put(batch)

    def stop(self) -> None:
        """Finish all that came in, then end."""
        self._backbone.stop()
        if self._hand_over is not None:
            self._hand_over.stop()

    def _compute(self, batch: Batch) -> None:
        assert batch.loaded is not None
        batch.timeline.backbone_start = time.monotonic()
        try:
            batch.computed = batch.plan.run(self._stream, self._copies, batch.loaded, batch.lease, len(batch.frames))
        except Exception as error:
            self._failed(batch, error)
            return
        if self._hand_over is not None:
            self._hand_over.put(batch)
        else:
            self._finish(batch)

    def _finish(self, batch: Batch) -> None:
        try:
            batch.computed.wait()
            batch.loaded = None  # not earlier: the GPU was reading it
            # a GPU began with this batch when it was done with the one before
            batch.timeline.backbone_start = max(batch.timeline.backbone_start, self._last_end)
            batch.timeline.backbone_end = self._last_end = time.monotonic()
            self._done(batch)
        except Exception as error:
            self._failed(batch, error)
