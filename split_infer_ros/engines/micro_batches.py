"""A part that computes a batch in several runs of a few images each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from split_infer_ros.buffers.host_arrays import DType, Values, as_tensor, copy_into
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.images.pixel_input import PixelInput


class MicroBatchPart(EnginePart):
    """A part that runs another part once for each micro-batch. It maps n images (n, ...) to results (n, ...).

    Results of known shape need no copy. There are two reasons for micro-batches. A graph may take only a fixed number
    of images. Or the values within the network fit into the processor's caches for two images, but not for eight.

    If a graph takes a fixed number and fewer images are left, the last image is repeated. Results of repeated images
    are dropped.

    With micro-batches of one image, an output may lack the dimension of the batch, such as (k, 4) for the k boxes of an
    image. Such outputs are stacked: (n, k, 4). If images have different numbers of boxes, zeros follow the last box.

    Args:
        part: the part to run. Unless it takes a fixed number of images, its results' shapes must be known before a run.
        num_images: images of a micro-batch, unless the part takes a fixed number. A batch's last micro-batch may have
            fewer.
    """

    def __init__(self, part: EnginePart, num_images: int = 1) -> None:
        super().__init__(part.graph)
        self.inputs = part.inputs
        fixed = part.graph.inputs[0].shape[0]
        self._part, self._num_images, self._is_fixed = part, fixed or num_images, fixed is not None

    def for_pixels(self, pixels: PixelInput) -> MicroBatchPart | None:
        """Returns a part that normalises its images (n, h, w, 3) itself, in micro-batches of the same size.

        None if the engine gains nothing by that; see ``EnginePart.for_pixels``.
        """
        part = self._part.for_pixels(pixels)
        return None if part is None else MicroBatchPart(part, self._num_images)

    def _taken(self, values: Values) -> Values:
        return self._part._taken(values)

    def _empty(self, shape: tuple[int, ...], dtype: DType) -> Values:
        return self._part._empty(shape, dtype)

    def run_prepared(self, outputs: Sequence[Values | None], values: Sequence[Values]) -> tuple[Values, ...]:
        runs = []
        for begin in range(0, len(values[0]), self._num_images):
            images = slice(begin, begin + self._num_images)
            places = [None if output is None else output[images] for output in outputs]
            runs.append(self._run_one(places, [each[images] for each in values]))
        return tuple(
            self._joined(place, [run[place] for run in runs], len(values[0])) if output is None else output
            for place, output in enumerate(outputs)
        )

    def _run_one(self, places: Sequence[Values | None], values: Sequence[Values]) -> tuple[Values, ...]:
        """Runs a micro-batch. If images are missing and the part takes a fixed number, it repeats the last image."""
        missing = self._num_images - len(values[0])
        if not self._is_fixed or not missing:
            return self._part.run_prepared(places, values)
        filled = [_joined([each, *[each[-1:]] * missing]) for each in values]
        whole = [
            None if place is None else self._empty((self._num_images, *place.shape[1:]), expected.dtype)
            for place, expected in zip(places, self.graph.outputs, strict=True)
        ]
        results = self._part.run_prepared(whole, filled)
        for place, result in zip(places, results, strict=True):
            if place is not None:
                copy_into(place, result[: len(place)])
        return results

    def _joined(self, place: int, results: Sequence[Values], count: int) -> Values:
        """Joins one output's results of all micro-batches: pads each to the longest, and drops repeated images."""
        if self._num_images == 1 and self.graph.outputs[place].shape[:1] != (1,):
            results = [result[None] for result in results]
        elif any(result.shape[:1] != (self._num_images,) for result in results):
            raise ConfigurationError(
                f"{self.graph.name} takes {self._num_images} images at a time, and its output "
                f"{self.graph.outputs[place]} does not say which image a value belongs to. Export it with a batch of "
                "1, or with a symbolic one."
            )
        lengths = [max(sizes) for sizes in zip(*(result.shape for result in results), strict=True)]
        return _joined([_padded(result, lengths) for result in results])[:count]


def _joined(values: Sequence[Values]) -> Values:
    """Returns the values one behind the other, in new memory."""
    arrays = [each for each in values if isinstance(each, np.ndarray)]
    if arrays:
        return np.concatenate(arrays)
    import torch  # only here: values on a GPU are tensors

    return torch.cat(list(map(as_tensor, values)))


def _padded(values: Values, lengths: Sequence[int]) -> Values:
    """Returns values with zeros appended in each dimension, up to ``lengths``."""
    missing = [length - size for length, size in zip(lengths, values.shape, strict=True)]
    if not any(missing):
        return values
    if isinstance(values, np.ndarray):
        return np.pad(values, [(0, length) for length in missing])
    padded = values.new_zeros(tuple(lengths))
    padded[tuple(map(slice, values.shape))] = values
    return padded
