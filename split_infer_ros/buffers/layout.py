"""How the tensors that cross a cut lie in one slot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from split_infer_ros.errors import SplitInferError

ALIGNMENT = 256  # bytes: what CUDA's own allocator gives, and a multiple of every vector width


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that crosses a cut, without its batch dimension.

    Attributes:
        name: the value's name in the model's graph.
        shape: of one image.
        dtype: of the elements.
        channels_last: a (C, H, W) tensor is stored as (H, W, C).
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool = False

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

    def views(self, slot: Tensor, batch: int) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images as views of a slot.

        Args:
            slot: uint8 (slot_bytes,), on any device.
            batch: how many images, at most ``batch_size``.

        Returns:
            One (batch, *shape) tensor a spec; nothing is copied.

        Raises:
            SplitInferError: more images than there is room for.
        """
        if not 0 <= batch <= self.batch_size:
            raise SplitInferError(f"A slot for {self.batch_size} images cannot hold {batch}.")
        found = []
        for spec, offset in zip(self.specs, self.offsets, strict=True):
            flat = slot[offset : offset + spec.bytes_per_image * batch].view(spec.dtype)
            if spec.channels_last and len(spec.shape) == 3:
                channels, height, width = spec.shape
                found.append(flat.view(batch, height, width, channels).permute(0, 3, 1, 2))
            else:
                found.append(flat.view(batch, *spec.shape))
        return tuple(found)


class SlotViews:
    """``Layout.views`` of one slot, made once for each number of images.

    Args:
        layout: of the slot.
        slot: uint8 (slot_bytes,), on any device.
    """

    def __init__(self, layout: Layout, slot: Tensor) -> None:
        self._layout = layout
        self._slot = slot
        self._of: dict[int, tuple[Tensor, ...]] = {}

    def __call__(self, batch: int) -> tuple[Tensor, ...]:
        """The tensors of ``batch`` images, the same objects each time."""
        found = self._of.get(batch)
        if found is None:
            found = self._of[batch] = self._layout.views(self._slot, batch)
        return found
