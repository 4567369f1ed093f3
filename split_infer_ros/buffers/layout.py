"""How the tensors that cross a split point lie in one slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from split_infer_ros.errors import SplitInferError

ALIGNMENT = 256  # bytes: what CUDA's own allocator gives, and a multiple of every vector width

Strides = tuple[int, ...]  # of a whole batch, in elements, as torch counts them


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that crosses a split point, without its batch dimension.

    Attributes:
        name: the value's name in the model's graph.
        shape: of one image.
        dtype: of the elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes_per_image(self) -> int:
        """Bytes of one image's part."""
        return math.prod(self.shape) * self.dtype.itemsize


class Layout:
    """Where each tensor of a batch of up to ``batch_size`` images lies in a slot.

    Args:
        specs: the tensors in the order in which they cross.
        batch_size: the largest batch a slot must hold.
    """

    def __init__(self, specs: Sequence[TensorSpec], batch_size: int) -> None:
        self.specs = tuple(specs)
        self.batch_size = batch_size
        self.offsets: list[int] = []
        offset = 0
        for spec in self.specs:
            self.offsets.append(offset)
            size = spec.bytes_per_image * batch_size
            offset += -(-size // ALIGNMENT) * ALIGNMENT
        self.slot_bytes = max(offset, ALIGNMENT)

    def views(self, slot: Tensor, batch: int, strides: Sequence[Strides] | None = None) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images as views of a slot.

        Args:
            slot: uint8 (slot_bytes,), on any device.
            batch: how many images, at most ``batch_size``.
            strides: of each tensor, such that it ``is_dense``; row by row unless given.

        Returns:
            One (batch, *shape) tensor a spec; nothing is copied.

        Raises:
            SplitInferError: more images than there is room for.
        """
        if not 0 <= batch <= self.batch_size:
            raise SplitInferError(f"A slot for {self.batch_size} images cannot hold {batch}.")
        found = []
        for index, (spec, offset) in enumerate(zip(self.specs, self.offsets, strict=True)):
            rows = slot[offset : offset + spec.bytes_per_image * batch].view(spec.dtype).view(batch, *spec.shape)
            found.append(rows if strides is None else rows.as_strided(rows.shape, strides[index]))
        return tuple(found)


def is_dense(shape: Sequence[int], strides: Strides) -> bool:
    """True if a tensor of these strides has no gap and no overlap, in whatever order its dimensions lie.

    The stride of a dimension of one element moves nothing. It counts all the same, as kernels are chosen by it; it may
    be anything up to the number of elements.
    """
    reached = 1
    for stride, size in sorted(zip(strides, shape, strict=False)):
        if size != 1:
            if stride != reached:
                return False
            reached *= size
    return len(strides) == len(shape) and all(0 <= stride <= max(reached, 1) for stride in strides)


def dense_strides(tensor: Tensor) -> Strides:
    """The tensor's own strides if it ``is_dense``; else those of its dimensions in the same order, without gaps."""
    strides = tensor.stride()
    if is_dense(tensor.shape, strides):
        return strides
    found, reached = [1] * tensor.dim(), 1
    for dimension in sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension])[::-1]:
        found[dimension] = reached
        reached *= tensor.shape[dimension]
    return tuple(found)


class SlotViews:
    """``Layout.views`` of one slot, made anew for a number of images only where their strides have changed.

    Args:
        layout: of the slot.
        slot: uint8 (slot_bytes,), on any device.
    """

    def __init__(self, layout: Layout, slot: Tensor) -> None:
        self._layout = layout
        self._slot = slot
        self._of: dict[int, tuple[Sequence[Strides] | None, tuple[Tensor, ...]]] = {}

    def __call__(self, batch: int, strides: Sequence[Strides] | None = None) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images by these strides, the same objects each time."""
        known = self._of.get(batch)
        if known is None or known[0] != strides:
            known = self._of[batch] = strides, self._layout.views(self._slot, batch, strides)
        return known[1]
