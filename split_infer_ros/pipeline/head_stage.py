"""The thread that takes handles, runs the head on what lies in their slots and delivers detections."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue

import torch

from split_infer_ros.buffers.pool import FeatureReader
from split_infer_ros.buffers.slots import Outcome
from split_infer_ros.errors import HandleError, SplitInferError
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.pipeline.cores import use_all_cores, use_one_core
from split_infer_ros.pipeline.frame import Handle, Origin
from split_infer_ros.split.model import SplitModel

YIELD_S = 1e-6

Deliver = Callable[[Origin, Detections], None]


class HeadStage:
    """Runs the head's half on its own thread.

    Args:
        model: whose head runs.
        limits: what post-processing keeps; may be replaced at any time.
        deliver: called with each frame's origin and its detections in the source image's pixels.
        on_error: told of every exception that cost frames, and of every refused handle.

    Attributes:
        refused: handles that were refused, by reason.
    """

    def __init__(
        self, model: SplitModel, limits: Limits, deliver: Deliver, on_error: Callable[[Exception], None]
    ) -> None:
        self.limits = limits
        self.refused: Counter[str] = Counter()
        self._model = model
        self._deliver = deliver
        self._on_error = on_error
        self._handles: SimpleQueue[tuple[Handle, FeatureReader] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to take handles, until stop; may be started again."""
        self._thread = threading.Thread(target=self._loop, name="head", daemon=True)
        self._thread.start()

    def submit(self, handle: Handle, reader: FeatureReader) -> None:
        """A handle came in, to a slot that ``reader`` gives access to."""
        self._handles.put((handle, reader))
        # Gives the interpreter away for some 60 us; the head would else wait until the caller next lets go of it.
        time.sleep(YIELD_S)

    def refuse(self, error: HandleError) -> None:
        """A handle came in that leads nowhere."""
        self.refused[error.reason] += 1
        self._on_error(error)

    def stop(self) -> None:
        """Finish the handles that came in, then end."""
        if self._thread is not None:
            self._handles.put(None)
            self._thread.join()
            self._thread = None

    def _loop(self) -> None:
        if self._model.device.type == "cpu":  # the backbone needs the cores
            use_one_core()
        else:
            use_all_cores()
        while (work := self._handles.get()) is not None:
            handle, reader = work
            start = time.monotonic()
            try:
                reader.take(handle.lease)
            except HandleError as error:
                self.refuse(error)
                continue
            published = self._finish(handle, reader)
            try:
                reader.release(handle.lease, Outcome(published, "head_error", start, time.monotonic()))
            except HandleError as error:
                self.refuse(error)

    def _finish(self, handle: Handle, reader: FeatureReader) -> int:
        """Detect and deliver; returns for how many frames, the first ones, that succeeded."""
        published = 0
        try:
            for origin, detections in zip(handle.origins, self._detect(handle, reader), strict=True):
                self._deliver(origin, detections)
                published += 1
        except Exception as error:  # whatever one batch does, the next one gets its chance
            self._on_error(error)
        return published

    def _detect(self, handle: Handle, reader: FeatureReader) -> list[Detections]:
        """The batch's detections, in pixels of each source image."""
        entry = self._model.entry
        if handle.model != entry.name:
            raise SplitInferError(
                f"The backbone runs '{handle.model}' and this head '{entry.name}'; set the parameter model alike."
            )
        with torch.inference_mode():
            features = reader.views(handle.lease, len(handle.origins))
            outputs = self._model.halves(handle.split_point).head(*features)
            found = entry.decode(outputs, self.limits)
            return [
                Detections(
                    entry.preprocess.to_source(detections.boxes, origin.height, origin.width),
                    detections.scores,
                    detections.labels,
                )
                for detections, origin in zip(found, handle.origins, strict=True)
            ]
