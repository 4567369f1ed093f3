"""The head partitions of a model. Their weights stay in memory, or are read from storage while the partition runs."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.buffers.layout import TensorSpec
from split_infer_ros.engines.compute import Features, Head
from split_infer_ros.engines.engine import Engine
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.runtime.heap import trim
from split_infer_ros.runtime.inference import inference_mode
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.server.report import WeightsReport
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.split_points import as_specified
from split_infer_ros.weight_streaming.settings import WeightsSettings
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition
from split_infer_ros.weight_streaming.streaming import pack_streamed, stream_head


@dataclass(frozen=True, slots=True)
class _CurrentHead:
    """The head behind the latest batch's split point. It is kept because the model may make another head meanwhile."""

    split_point: str
    partition: Head
    inputs: tuple[TensorSpec, ...]

    @property
    def streamed(self) -> StreamedPartition | None:
        """The partition, if its weights are read while it runs."""
        return self.partition if isinstance(self.partition, StreamedPartition) else None

    def close(self) -> None:
        if self.streamed is not None:
            self.streamed.close()


class HeadPartitions:
    """Runs the head partition behind the split point of each batch. Keeps the latest one for the next batch.

    ``open`` packs the weights and makes an object of this class.

    Args:
        model: the model; its heads run here.
        num_threads: number of threads with which heads run. Streamed weights are laid out for this number.
        batch_size: number of images for which streamed weights are laid out.
        settings: where weights are, and how much memory they may take.
        on_note: called with a sentence if weights are not streamed as the settings ask.
    """

    def __init__(
        self,
        model: SplitModel,
        settings: WeightsSettings,
        *,
        num_threads: int,
        batch_size: int,
        on_note: Callable[[str], None],
    ) -> None:
        self._model = model
        self._settings = settings
        self._num_threads = num_threads
        self._batch_size = batch_size
        self._on_note = on_note
        self._lock = threading.Lock()  # held while a partition runs, so that nobody closes it
        self._current: _CurrentHead | None = None

    @classmethod
    def open(
        cls,
        model: SplitModel,
        settings: WeightsSettings,
        *,
        num_threads: int,
        batch_size: int,
        on_note: Callable[[str], None],
    ) -> HeadPartitions:
        """Returns the head partitions of a model; for the arguments, see the class.

        If weights are streamed, packs them first, so that the first batch need not wait.

        Raises:
            ConfigurationError: the weights cannot be packed, or the packed file belongs to another model.
        """
        heads = cls(model, settings, num_threads=num_threads, batch_size=batch_size, on_note=on_note)
        heads._pack(settings)
        return heads

    def run(self, split_point: str, features: Features) -> Features:
        """Maps the features at a split point to the model's outputs. Features in 16 bits become float32 first.

        Features that are not float32 in the model itself, such as int8, stay as they are.

        Raises:
            ConfigurationError: there is no such split point, or its partition cannot be streamed with the settings.
            StreamError: weights did not arrive. The next pass reads all of them again.
        """
        with self._lock:
            if self._current is None or self._current.split_point != split_point:
                self._close()
                self._current = self._open(split_point, self._settings)
            if not self._model.takes_arrays:
                features = tuple(map(as_tensor, features))
            return tuple(self._current.partition(*as_specified(features, self._current.inputs)))

    def prepare(self, split_point: str, batch_size: int) -> None:
        """Compiles the head and runs it on blank features, so that the first batch need not wait for it.

        Exporting and compiling can take seconds. Heads that torch runs need no preparation. Batches may run meanwhile.

        Args:
            split_point: where the model will be split.
            batch_size: size of full batches. The head is prepared for single images as well.

        Raises:
            ConfigurationError: there is no such split point, or the engine cannot run the head.
        """
        if self._model.head_config.engine is Engine.TORCH:
            return
        found = self._model.split_point(split_point)

        def run() -> None:
            with inference_mode():
                head = self._model.head(found.name)
                for size in {1, batch_size} if isinstance(head, EnginePart) else ():
                    head(*found.blank_head_inputs(size))

        run_with_threads(self._num_threads, run)

    def configure(self, settings: WeightsSettings) -> None:
        """Changes where weights are, from the next batch on.

        Raises:
            ConfigurationError: the weights cannot be kept or streamed as the settings say. Nothing has changed.
        """
        if settings == self._settings:
            return
        previous, current = self._current, None
        if previous is None:
            self._pack(settings)
        else:  # the previous partition may run meanwhile
            current = self._open(previous.split_point, settings)
        with self._lock:
            self._close()
            self._settings, self._current = settings, current
        del previous
        if current is not None and current.streamed is not None:  # only now are resident weights released
            gc.collect()
            trim()

    @property
    def weights(self) -> WeightsReport | None:
        """The report on streamed weights; None while no weights are streamed."""
        current = self._current
        return WeightsReport.of(current.streamed) if current else None

    def close(self) -> None:
        """Closes the current partition, and stops reading its weights. The next batch opens its partition again."""
        with self._lock:
            self._close()

    def _open(self, split_point: str, settings: WeightsSettings) -> _CurrentHead:
        point = self._model.split_point(split_point)
        streamed = stream_head(
            self._model,
            point,
            settings,
            num_threads=self._num_threads,
            batch_size=self._batch_size,
        )
        if streamed is not None and streamed.note:
            self._on_note(streamed.note)
        partition: Head = self._model.head(split_point) if streamed is None else streamed
        return _CurrentHead(split_point, partition, point.head_inputs)

    def _close(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.close()

    def _pack(self, settings: WeightsSettings) -> None:
        pack_streamed(self._model, settings, num_threads=self._num_threads, batch_size=self._batch_size)
