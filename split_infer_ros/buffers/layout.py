"""Says where in a slot each tensor lies that crosses a split point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from split_infer_ros.buffers.host_arrays import Array, DType, Values, torch_dtype
from split_infer_ros.errors import SplitInferError

ALIGNMENT = 256  # bytes, the alignment of CUDA's own allocator; a multiple of every vector width

Kind = TypeVar("Kind", bound=Any)  # arrays, or tensors
Strides = tuple[int, ...]  # the strides of a batch, in elements


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor that crosses a split point, without its batch dimension.

    Attributes:
        name: the name of the value in the model's graph.
        shape: the shape for one image.
        dtype: the dtype of the elements.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def bytes_per_image(self) -> int:
        """Bytes of the tensor for one image."""
        return math.prod(self.shape) * self.dtype.itemsize


class Layout:
    """The places of a batch's tensors in a slot.

    Args:
        specs: the tensors in the order in which they cross the split point.
        batch_size: the largest batch that a slot must hold.

    Attributes:
        specs, batch_size: the arguments.
        offsets: where each tensor begins in a slot, in bytes: a multiple of ``ALIGNMENT``.
        slot_bytes: the size of a slot.
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

    def views(self, slot: Kind, batch: int, strides: Sequence[Strides] | None = None) -> tuple[Kind, ...]:
        """Returns the values of ``batch`` images as views of a slot. They are arrays or tensors, like the slot itself.

        Args:
            slot: uint8 (slot_bytes,), an array of the host or a tensor on any device.
            batch: number of images, at most ``batch_size``.
            strides: the strides of each tensor, which must be dense (see ``is_dense``); None: contiguous tensors.

        Returns:
            One (batch, *shape) view for each spec. Nothing is copied.

        Raises:
            SplitInferError: the slot has no room for ``batch`` images.
        """
        if not 0 <= batch <= self.batch_size:
            raise SplitInferError(f"A slot for {self.batch_size} images cannot hold {batch}.")
        views = []
        for index, (spec, offset) in enumerate(zip(self.specs, self.offsets, strict=True)):
            data = slot[offset : offset + spec.bytes_per_image * batch]
            views.append(_view(data, spec, batch, None if strides is None else strides[index]))
        return tuple(views)


def _view(data: Any, spec: TensorSpec, batch: int, strides: Strides | None) -> Any:
    shape = batch, *spec.shape
    if isinstance(data, np.ndarray):
        in_bytes = None if strides is None else [stride * spec.dtype.itemsize for stride in strides]
        array: Array = np.ndarray(shape, spec.dtype, data, strides=in_bytes)
        return array
    view = data.view(torch_dtype(spec.dtype)).view(shape)
    return view if strides is None else view.as_strided(shape, strides)


def strides_of(values: Values) -> Strides:
    """Returns the strides of an array or a tensor, in elements."""
    if isinstance(values, np.ndarray):
        return tuple(stride // values.itemsize for stride in values.strides)
    return tuple(values.stride())


def is_dense(shape: Sequence[int], strides: Strides) -> bool:
    """Returns whether a tensor with these strides has no gaps and no overlaps, whatever the order of its dimensions.

    The stride of a dimension of size 1 may be any number up to the number of elements. It does not affect where
    elements lie, but engines choose kernels by it.
    """
    elements = 1
    for stride, size in sorted(zip(strides, shape, strict=False)):
        if size != 1:
            if stride != elements:
                return False
            elements *= size
    return len(strides) == len(shape) and all(0 <= stride <= max(elements, 1) for stride in strides)


def dense_strides(tensor: Values) -> Strides:
    """Returns the strides, in elements, that a tensor would have without gaps and overlaps.

    The order of its dimensions in memory stays. A tensor that is already dense keeps its own strides.
    """
    strides = strides_of(tensor)
    if is_dense(tensor.shape, strides):
        return strides
    dense, elements = [1] * tensor.ndim, 1
    innermost_first = sorted(range(tensor.ndim), key=lambda dimension: -strides[dimension])[::-1]
    for dimension in innermost_first:
        dense[dimension] = elements
        elements *= tensor.shape[dimension]
    return tuple(dense)


def batched_strides(tensor: Values) -> Strides:
    """Returns the strides, in elements, that a tensor would have if it were dense and its images followed each other.

    The first dimension counts the images. With these strides, the first images of a batch are dense by themselves. If
    the images already follow each other in ``dense_strides(tensor)``, the result is ``dense_strides(tensor)``.
    """
    strides = dense_strides(tensor)
    if len(tensor) == 1 or strides[0] * len(tensor) == math.prod(tensor.shape):
        return strides
    return math.prod(tensor.shape[1:]), *dense_strides(tensor[0])


class SlotViews(Generic[Kind]):
    """Caches the views of one slot for each number of images.

    Views are made again only if the strides have changed.

    Args:
        layout: the layout of the slot.
        slot: uint8 (slot_bytes,), an array of the host or a tensor on any device.
    """

    def __init__(self, layout: Layout, slot: Kind) -> None:
        self._layout = layout
        self._slot = slot
        self._cache: dict[int, tuple[Sequence[Strides] | None, tuple[Kind, ...]]] = {}

    def __call__(self, batch: int, strides: Sequence[Strides] | None = None) -> tuple[Kind, ...]:
        """Returns the views of ``batch`` images with these strides. Repeated calls return the same objects."""
        cached = self._cache.get(batch)
        if cached is None or cached[0] != strides:
            cached = self._cache[batch] = strides, self._layout.views(self._slot, batch, strides)
        return cached[1]
