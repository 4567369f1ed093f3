"""The heads' partitions as their weights are: in memory, or read while they run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from torch import Tensor

from split_infer_ros.pipeline.packed_weights import find_packed
from split_infer_ros.pipeline.report import WeightsReport
from split_infer_ros.pipeline.settings import WeightsSettings
from split_infer_ros.pipeline.streaming import stream_head
from split_infer_ros.split.model import SplitModel
from split_infer_ros.weight_streaming.residency import RESIDENT
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition


class HeadPartitions:
    """Runs the partition behind the split point that a batch comes from; of streamed ones it keeps the latest.

    Args:
        model: whose heads they are.
        threads: with which they run, for which weights that are read are laid out.
        batch_size: the same, images.
        settings: where weights are, and what they may take.
        on_note: told what is to be said of a file, sentences.

    Raises:
        ConfigurationError: weights that are to be read cannot be packed, or are not this model's.
    """

    def __init__(
        self,
        model: SplitModel,
        threads: int,
        batch_size: int,
        settings: WeightsSettings,
        on_note: Callable[[str], None],
    ) -> None:
        self._model, self._threads, self._batch_size = model, threads, batch_size
        self._on_note = on_note
        self._lock = threading.Lock()  # held while a partition runs, which nobody then closes
        self._settings = settings
        self._made: tuple[str, StreamedPartition | None] | None = None  # for the latest batch's cut
        self._find_file(settings)

    def run(self, split_point: str, features: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """What crossed the split point of that name, in float32, to the model's outputs.

        Raises:
            ConfigurationError: there is no such cut, or its partition cannot be streamed as the settings have it.
            StreamError: weights did not come; the next pass reads all of them again.
        """
        with self._lock:
            if self._made is None or self._made[0] != split_point:
                self._close()
                self._made = split_point, self._make(split_point, self._settings)
            partition = self._made[1] or self._model.head(split_point)
            return tuple(partition(*features))

    def configure(self, settings: WeightsSettings) -> None:
        """Have weights elsewhere from the next batch on.

        Raises:
            ConfigurationError: they cannot be there; nothing has changed.
        """
        if settings == self._settings:
            return
        before, made = self._made, None
        if before is None:
            self._find_file(settings)
        else:  # beside the one that runs
            split_point, _ = before
            made = split_point, self._make(split_point, settings)
            if made[1] is None:
                self._model.head(split_point)
        with self._lock:
            self._close()
            self._settings, self._made = settings, made

    @property
    def weights(self) -> WeightsReport | None:
        """What is to be said of weights that are read; None while none are."""
        made = self._made
        return WeightsReport.of(made[1]) if made else None

    def close(self) -> None:
        """Read no more; the next batch makes its partition anew."""
        with self._lock:
            self._close()

    def _make(self, split_point: str, settings: WeightsSettings) -> StreamedPartition | None:
        made = stream_head(self._model, self._model.split_point(split_point), settings, self._threads, self._batch_size)
        if made is not None and made.note:
            self._on_note(made.note)
        return made

    def _close(self) -> None:
        made, self._made = self._made, None
        if made is not None and made[1] is not None:
            made[1].close()

    def _find_file(self, settings: WeightsSettings) -> None:
        """Pack, which takes its time, before the first batch comes."""
        if settings.weights_residency != RESIDENT:
            find_packed(self._model, settings.weights_file, self._threads, self._batch_size)
