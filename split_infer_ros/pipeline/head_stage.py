"""Handles in, detections out: the head's partition on one thread, decoding and delivery on another."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from split_infer_ros.buffers.pool import FeatureReader
from split_infer_ros.buffers.slots import Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.errors import HandleError, Notice, SplitInferError
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.plausibility import drop_impossible
from split_infer_ros.pipeline.frame import Handle, Origin
from split_infer_ros.pipeline.head_partitions import HeadPartitions
from split_infer_ros.pipeline.report import WeightsReport
from split_infer_ros.pipeline.settings import WeightsSettings
from split_infer_ros.runtime.num_threads import use_one_thread, use_threads
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.split.model import SplitModel

YIELD_S = 1e-6

Deliver = Callable[[Handle, int, Detections], None]  # of a batch, the frame of that index


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A batch whose slot this stage holds."""

    handle: Handle
    reader: FeatureReader
    outputs: tuple[Tensor, ...] = ()
    start: float = 0.0
    end: float = 0.0


class HeadStage:
    """Runs the head's partition on its own thread, and what is not the head's on another.

    Args:
        model: whose head runs.
        limits: what post-processing keeps; may be replaced at any time.
        deliver: called with the handle, the index of a frame in it and its detections, in the source image's pixels.
        on_error: told of every exception that cost frames, and of every refused handle.
        threads: cores that the head's operations may use.
        settings: where the head's weights are; unless given, in memory.
        batch_size: images for which weights that are read are laid out; other batches work, some more slowly.

    Raises:
        ConfigurationError: weights that are to be read cannot be packed, or are not this model's.

    Attributes:
        refused: handles that were refused, by reason.
        left_out: detections that cannot be, by name; see ``drop_impossible``.
    """

    def __init__(
        self,
        model: SplitModel,
        limits: Limits,
        deliver: Deliver,
        on_error: Callable[[Exception], None],
        threads: int = 1,
        settings: WeightsSettings | None = None,
        batch_size: int = 1,
    ) -> None:
        self.limits = limits
        self.refused: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._model = model
        self._deliver = deliver
        self._on_error = on_error
        self._partitions = HeadPartitions.open(
            model,
            settings or WeightsSettings(),
            num_threads=threads,
            batch_size=batch_size,
            on_note=lambda note: on_error(Notice(note)),
        )
        self._head = WorkerThread("head", self._run, partial(use_threads, threads))
        self._postprocess = WorkerThread("postprocess", self._finish, use_one_thread)

    def start(self) -> None:
        """Begin to take handles, until stop; may be started again."""
        self._postprocess.start()
        self._head.start()

    def configure(self, settings: WeightsSettings) -> None:
        """Have the head's weights elsewhere from the next batch on.

        Raises:
            ConfigurationError: they cannot be there; nothing has changed.
        """
        self._partitions.configure(settings)

    @property
    def weights(self) -> WeightsReport | None:
        """Of weights that are read while the head runs."""
        return self._partitions.weights

    def submit(self, handle: Handle, reader: FeatureReader) -> None:
        """A handle came in, to a slot that ``reader`` gives access to."""
        self._head.put(_Work(handle, reader))
        # Gives the interpreter away for some 60 us; the head would else wait until the caller next lets go of it.
        time.sleep(YIELD_S)

    def refuse(self, error: HandleError) -> None:
        """A handle came in that leads nowhere."""
        self.refused[error.reason] += 1
        self._on_error(error)

    def stop(self) -> None:
        """Finish the handles that came in, then end."""
        self._head.stop()
        self._postprocess.stop()
        self._partitions.close()

    def _run(self, work: _Work) -> None:
        start = time.monotonic()
        try:
            work.reader.take(work.handle.lease)
        except HandleError as error:
            self.refuse(error)
            return
        try:
            outputs = self._infer(work.handle, work.reader)
        except Exception as error:  # whatever one batch does, the next one gets its chance
            self._on_error(error)
            self._release(work, 0, start, time.monotonic())
            return
        self._postprocess.put(_Work(work.handle, work.reader, outputs, start, time.monotonic()))

    def _infer(self, handle: Handle, reader: FeatureReader) -> tuple[Tensor, ...]:
        entry = self._model.entry
        if handle.model != entry.name:
            raise SplitInferError(
                f"The backbone runs '{handle.model}' and this head '{entry.name}'; set the parameter model alike."
            )
        with torch.inference_mode():
            features = reader.views(handle.lease, len(handle.origins))
            return self._partitions.run(
                handle.split_point,
                [feature.float() if feature.is_floating_point() else feature for feature in features],
            )

    def _finish(self, work: _Work) -> None:
        """Decode and deliver; the slot is given back only now, as a head of no operation hands on views of it."""
        published = 0
        try:
            with torch.inference_mode():
                entry = self._model.entry
                found, impossible = drop_impossible(entry.decode(work.outputs, self.limits), len(entry.labels))
            self.left_out += impossible
            handle = work.handle
            for index, (origin, detections) in enumerate(zip(handle.origins, found, strict=True)):
                self._deliver(handle, index, self._in_source(detections, origin))
                published += 1
        except Exception as error:  # as above
            self._on_error(error)
        self._release(work, published, work.start, work.end)

    def _in_source(self, detections: Detections, origin: Origin) -> Detections:
        boxes = self._model.entry.preprocess.to_source(detections.boxes, origin.height, origin.width)
        return Detections(boxes, detections.scores, detections.labels)

    def _release(self, work: _Work, published: int, start: float, end: float) -> None:
        try:
            work.reader.release(
                work.handle.lease, Outcome(published, DropReason.HEAD_ERROR, start, end, time.monotonic())
            )
        except HandleError as error:
            self.refuse(error)
