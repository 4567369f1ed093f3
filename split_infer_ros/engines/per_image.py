"""A part that runs the images of a batch one by one, because its graph takes no more at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from split_infer_ros.engines.engine_part import EnginePart


class PerImagePart(EnginePart):
    """A part that maps (n, ...) to (n, ...) by n runs. Results of known shape are written where they belong.

    Outputs without the batch in front, such as the boxes (k, 4) of one image, are stacked: (n, k, 4). Where k differs
    between images, zeros follow the last box.

    Args:
        part: takes one image, in tensors (1, ...).
    """

    def __init__(self, part: EnginePart) -> None:
        super().__init__(part.graph)
        self._part = part

    def _run(self, outputs: Sequence[Tensor | None], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        runs = []
        for index in range(len(tensors[0])):
            places = [None if output is None else output[index : index + 1] for output in outputs]
            runs.append(self._part._run(places, [tensor[index : index + 1] for tensor in tensors]))
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
