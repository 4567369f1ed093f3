"""A part that computes a batch in several runs, each of a few images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.images.pixel_input import PixelInput


class MicroBatchPart(EnginePart):
    """A part that maps (n, ...) to (n, ...) by one run for each micro-batch. Results of known shape need no copy.

    There are two reasons to run so. A graph may take only one image at a time. Or the values within the network fit
    into the processor's caches for two images, and not for eight.

    With micro-batches of one image, outputs without the batch in front, such as the boxes (k, 4) of one image, are
    stacked: (n, k, 4). Where k differs between images, zeros follow the last box.

    Args:
        part: what runs. Unless ``num_images`` is 1, the shapes of its results are known before a run.
        num_images: of a micro-batch. The last one of a batch may have fewer.
    """

    def __init__(self, part: EnginePart, num_images: int = 1) -> None:
        super().__init__(part.graph)
        self.inputs = part.inputs
        self._part, self._num_images = part, num_images

    def for_pixels(self, pixels: PixelInput) -> MicroBatchPart | None:
        """Returns a part that takes images (n, h, w, 3) before they are normalised, in the same micro-batches."""
        part = self._part.for_pixels(pixels)
        return None if part is None else MicroBatchPart(part, self._num_images)

    def _run(self, outputs: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        runs = []
        for begin in range(0, len(tensors[0]), self._num_images):
            images = slice(begin, begin + self._num_images)
            places = [None if output is None else output[images] for output in outputs]
            runs.append(self._part._run(places, [tensor[images] for tensor in tensors]))
        return tuple(
            self._joined(place, [run[place] for run in runs]) if output is None else output
            for place, output in enumerate(outputs)
        )

    def _joined(self, place: int, results: Sequence[Tensor]) -> Tensor:
        """Joins an output's results of single images, each as long as the longest."""
        if self.graph.outputs[place].shape[:1] != (1,):
            results = [result[None] for result in results]
        lengths = [max(sizes) for sizes in zip(*(result.shape for result in results), strict=True)]
        return torch.cat([_padded(result, lengths) for result in results])


def _padded(tensor: Tensor, lengths: Sequence[int]) -> Tensor:
    """Returns a tensor with zeros behind the last element of each dimension, so that it has these lengths."""
    missing = [length - size for length, size in zip(lengths, tensor.shape, strict=True)]
    if not any(missing):
        return tensor
    return functional.pad(tensor, [number for length in reversed(missing) for number in (0, length)])
