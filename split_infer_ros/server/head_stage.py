"""The head stage: takes handles to features, and delivers detections."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from split_infer_ros.buffers.pool import FeatureReader
from split_infer_ros.buffers.slots import Outcome
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.engines.compute import Features
from split_infer_ros.engines.engine import Engine
from split_infer_ros.errors import HandleError, Notice, SplitInferError
from split_infer_ros.models.detections import Detections, Limits
from split_infer_ros.models.plausibility import drop_impossible
from split_infer_ros.runtime.cores import ANY_CORE, Cores
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.num_threads import use_one_thread
from split_infer_ros.runtime.priority import HEAD, give_way
from split_infer_ros.runtime.worker_thread import WorkerThread
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.guarded import guarded
from split_infer_ros.server.head_partitions import HeadPartitions
from split_infer_ros.server.report import WeightsReport
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.settings import WeightsSettings

YIELD_S = 1e-6

Deliver = Callable[[Handle, int, Detections], None]  # called with a batch's handle and the index of a frame in it


@dataclass(slots=True, eq=False)
class _HeadBatch:
    """A batch on its way through this stage, with the reader of its slot.

    Attributes:
        outputs: the head's outputs, once it has run.
        start, end: when the head ran, in seconds of the steady clock.
    """

    handle: Handle
    reader: FeatureReader
    outputs: Features = ()
    start: float = 0.0
    end: float = 0.0


class HeadStage:
    """Turns handles into detections. One thread runs the head partition, another decodes and delivers the results.

    ``open`` creates a stage.

    Args:
        model: the model; its head runs here.
        limits: the limits of post-processing; may be replaced at any time.
        partitions: runs the head behind a batch's split point.
        deliver: called with a batch's handle, the index of a frame in the batch, and the frame's detections in the
            source image's pixels.
        on_error: called with every exception that cost frames, and with every refused handle.
        num_threads: threads that the head's operations may use.
        cores: the cores on which all threads of the stage run.

    Attributes:
        cores: the argument.
        refused: number of refused handles by reason.
        left_out: number of impossible detections by kind; see ``drop_impossible``.
    """

    def __init__(
        self,
        model: SplitModel,
        limits: Limits,
        partitions: HeadPartitions,
        *,
        deliver: Deliver,
        on_error: Callable[[Exception], None],
        num_threads: int,
        cores: Cores = ANY_CORE,
    ) -> None:
        self.limits = limits
        self.cores = cores
        self._own_cores = cores.or_outer()  # later callers may be bound for the backbone
        self.refused: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self._model = model
        self._partitions = partitions
        self._deliver = deliver
        self._on_error = guarded(on_error)
        self._head_thread = WorkerThread("head", self._run, partial(_set_up, model.head_config.engine, num_threads))
        self._postprocess_thread = WorkerThread("postprocess", self._finish, use_one_thread)

    @classmethod
    def open(
        cls,
        model: SplitModel,
        limits: Limits,
        *,
        deliver: Deliver,
        on_error: Callable[[Exception], None],
        num_threads: int = 1,
        cores: Cores = ANY_CORE,
        weights: WeightsSettings | None = None,
        batch_size: int = 1,
        split_point: str = "default",
    ) -> HeadStage:
        """Creates a stage. Packs the head's weights if they are streamed, and compiles the head if its engine does so.

        Args:
            model, limits, deliver, num_threads, cores: as for the class.
            on_error: as for the class; also called with notices.
            weights: where the head's weights are; in memory if None.
            batch_size: number of images for which streamed weights are laid out and the head is compiled. Batches of
                other sizes may be slower.
            split_point: where the model will probably be split.

        Raises:
            ConfigurationError: weights cannot be packed, the packed file has other weights than this model, or the
                engine cannot run the head.
        """
        with cores.or_outer().bound():  # an engine's threads inherit the cores
            partitions = HeadPartitions.open(
                model,
                weights or WeightsSettings(),
                num_threads=num_threads,
                batch_size=batch_size,
                on_note=lambda note: on_error(Notice(note)),
            )
            partitions.prepare(split_point, batch_size)
        return cls(model, limits, partitions, deliver=deliver, on_error=on_error, num_threads=num_threads, cores=cores)

    def start(self) -> None:
        """Begins to process handles, until ``stop``. A stopped stage can be started again."""
        with self._own_cores.bound():
            self._postprocess_thread.start()
            self._head_thread.start()

    def configure(self, weights: WeightsSettings) -> None:
        """Changes where the head's weights are, from the next batch on.

        Raises:
            ConfigurationError: the weights cannot be kept or streamed as the settings say. Nothing has changed.
        """
        with self._own_cores.bound():
            self._partitions.configure(weights)

    @property
    def weights(self) -> WeightsReport | None:
        """The report on streamed weights; None while all weights stay in memory."""
        return self._partitions.weights

    @property
    def num_waiting(self) -> int:
        """How many batches wait for the head."""
        return len(self._head_thread)

    def prepare(self, model: str, split_point: str, batch_size: int) -> None:
        """Prepares the head behind a split point, so that its first batch need not wait. Batches may run meanwhile.

        Args:
            model: name of the model that the batches will come from. For another model than this stage's, nothing is
                prepared, because its batches are refused.
            split_point: where the model will be split.
            batch_size: size of full batches.

        Raises:
            ConfigurationError: there is no such split point, or the engine cannot run the head.
        """
        if model == self._model.entry.name:
            with self._own_cores.bound():
                self._partitions.prepare(split_point, batch_size)

    def submit(self, handle: Handle, reader: FeatureReader) -> None:
        """Queues a handle for the head's thread. ``reader`` gives access to the handle's slot."""
        self._head_thread.put(_HeadBatch(handle, reader))
        # This sleep takes about 60 us and releases the GIL. Otherwise the head waits until the caller releases it.
        time.sleep(YIELD_S)

    def refuse(self, error: Exception) -> None:
        """Reports an error. If it says that a handle cannot be used, it is also counted by its reason."""
        if isinstance(error, HandleError):
            self.refused[error.reason] += 1
        self._on_error(error)

    def stop(self, timeout_s: float | None = None) -> bool:
        """Finishes the submitted handles, then ends the threads.

        Args:
            timeout_s: seconds that each thread may take; None: no limit. A thread that takes longer is left running.

        Returns:
            Whether both threads have ended.
        """
        has_ended = self._head_thread.stop(timeout_s)
        has_ended = self._postprocess_thread.stop(timeout_s) and has_ended
        if has_ended:
            self._partitions.close()
        return has_ended

    def _run(self, batch: _HeadBatch) -> None:
        batch.start = time.monotonic()
        try:
            batch.reader.take(batch.handle.lease)
        except Exception as error:  # a batch that fails must not end the thread
            self.refuse(error)
            return
        try:
            batch.outputs = self._infer(batch.handle, batch.reader)
            batch.end = time.monotonic()
            self._postprocess_thread.put(batch)
        except Exception as error:
            self._on_error(error)
            batch.end = time.monotonic()
            self._release(batch, published=0)

    def _infer(self, handle: Handle, reader: FeatureReader) -> Features:
        entry = self._model.entry
        if handle.model != entry.name:
            raise SplitInferError(
                f"The backbone runs '{handle.model}' and this head '{entry.name}'; set the parameter model alike."
            )
        with inference_mode():
            features = reader.views(handle.lease, len(handle.origins))
            return self._partitions.run(handle.split_point, features)

    def _finish(self, batch: _HeadBatch) -> None:
        """Decodes and delivers a batch, then releases its slot.

        The slot is not released earlier, because the outputs of a head without operations are views of it.
        """
        handle, published = batch.handle, 0
        try:
            with inference_mode():
                entry = self._model.entry
                decoded = entry.detections_of(batch.outputs, self.limits)
            detected, impossible = drop_impossible(decoded, len(entry.labels))
            if impossible:
                self.left_out += impossible
            for index, (origin, detections) in enumerate(zip(handle.origins, detected, strict=True)):
                self._deliver(handle, index, entry.in_source(detections, origin.height, origin.width))
                published += 1
        except Exception as error:  # a batch that fails must not end the thread
            self._on_error(error)
        self._release(batch, published)

    def _release(self, batch: _HeadBatch, published: int) -> None:
        outcome = Outcome(published, DropReason.HEAD_ERROR, batch.start, batch.end, delivered=time.monotonic())
        try:
            batch.reader.release(batch.handle.lease, outcome)
        except Exception as error:  # a batch that fails must not end the thread
            self.refuse(error)


def _set_up(engine: Engine, num_threads: int) -> None:
    engine.use_threads(num_threads)
    give_way(HEAD)
