from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from split_infer_ros.buffers.host_arrays import BYTE, FLOAT16, FLOAT32, Array, as_array, as_tensor, bfloat16
from split_infer_ros.buffers.layout import (
    ALIGNMENT,
    Layout,
    TensorSpec,
    batched_strides,
    dense_strides,
    is_dense,
    strides_of,
)
from split_infer_ros.errors import SplitInferError

DTYPES = (FLOAT32, FLOAT16, bfloat16(), np.dtype(np.int64), BYTE, np.dtype(np.bool_))

specs = st.lists(
    st.builds(
        TensorSpec,
        name=st.just("x"),
        shape=st.lists(st.integers(1, 5), max_size=4).map(tuple),
        dtype=st.sampled_from(DTYPES),
    ),
    max_size=4,
)


@given(specs=specs, batch_size=st.integers(1, 4), data=st.data())
def test_views_do_not_overlap_and_copy_nothing(specs: list[TensorSpec], batch_size: int, data: st.DataObject) -> None:
    layout = Layout(specs, batch_size)
    slot = np.zeros(layout.slot_bytes, np.uint8)
    batch = data.draw(st.integers(1, batch_size))
    views = layout.views(slot, batch)
    assert len(views) == len(specs)
    start, end = slot.ctypes.data, slot.ctypes.data + slot.nbytes
    reached = start
    for spec, view in zip(specs, views, strict=True):
        assert view.shape == (batch, *spec.shape)
        assert view.dtype == spec.dtype
        assert reached <= view.ctypes.data
        assert (view.ctypes.data - start) % ALIGNMENT == 0
        reached = view.ctypes.data + view.nbytes
        assert reached <= end
    for view, tensor in zip(views, layout.views(as_tensor(slot), batch), strict=True):
        assert places(as_array(tensor)) == places(view)
    for index, view in enumerate(views):  # what is written through one is seen through no other
        before = slot.copy()
        view[...] = 1 if view.dtype == np.bool_ else 7
        for number, (other, untouched) in enumerate(zip(views, layout.views(before, batch), strict=True)):
            assert number == index or np.array_equal(other, untouched)


def places(array: Array) -> tuple[object, ...]:
    return array.ctypes.data, array.shape, array.strides, array.dtype


def test_a_full_batch_fits_exactly() -> None:
    layout = Layout([TensorSpec("a", (3, 5), FLOAT32), TensorSpec("b", (7,), BYTE)], 4)
    assert layout.offsets == [0, ALIGNMENT]
    assert layout.slot_bytes == 2 * ALIGNMENT
    assert layout.specs[0].bytes_per_image == 60


def test_views_have_the_given_strides() -> None:
    layout = Layout([TensorSpec("x", (3, 4, 5), FLOAT32)], 2)
    slot = torch.arange(layout.slot_bytes // 4, dtype=torch.float32).view(torch.uint8)
    (rows,) = layout.views(slot, 2)
    assert rows.is_contiguous()
    (view,) = layout.views(slot, 2, [(60, 1, 15, 3)])
    assert view.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(view, rows.view(2, 4, 5, 3).permute(0, 3, 1, 2))
    (array,) = layout.views(as_array(slot), 2, [(60, 1, 15, 3)])
    assert places(array) == places(as_array(view))


shapes = st.lists(st.sampled_from((1, 1, 2, 3)), min_size=1, max_size=5).map(tuple)


@given(shape=shapes, data=st.data())
def test_dense_strides_are_kept_whatever_the_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    """Also the strides of dimensions of size 1, which do not affect where an element lies."""
    order = data.draw(st.permutations(range(len(shape))))
    back = [order.index(dimension) for dimension in range(len(shape))]
    tensor = torch.zeros([shape[dimension] for dimension in order]).permute(back)
    free = [data.draw(st.integers(0, tensor.numel())) if size == 1 else None for size in shape]
    strides = tuple(s if f is None else f for s, f in zip(tensor.stride(), free, strict=True))
    tensor = tensor.as_strided(shape, strides)
    assert is_dense(shape, strides)
    assert dense_strides(tensor) == dense_strides(as_array(tensor)) == strides


@pytest.mark.parametrize(
    ("tensor", "strides"),
    [
        (torch.zeros(2, 6, 4, 5).contiguous(memory_format=torch.channels_last)[:, :3], (60, 1, 15, 3)),
        (torch.zeros(2, 3, 8)[:, :1], (8, 8, 1)),
        (torch.zeros(1, 3, 8)[:, :1], (8, 8, 1)),
        (torch.zeros(7, 2, 4).transpose(0, 1)[:, ::2], (4, 8, 1)),
        (torch.zeros(2, 3, 1).expand(2, 3, 4), (12, 4, 1)),
    ],
)
def test_dense_strides_remove_gaps_and_overlaps(tensor: Tensor, strides: tuple[int, ...]) -> None:
    assert not is_dense(tensor.shape, tensor.stride())
    assert dense_strides(tensor) == dense_strides(as_array(tensor)) == strides
    assert is_dense(tensor.shape, strides)


@pytest.mark.parametrize("strides", [(6, 2), (6, 2, 2), (6, 3, 1), (7, 2, 1), (6, 2, -1), (0, 2, 1), (6, 2, 1, 1)])
def test_is_dense_refuses_gaps_overlaps_and_bounds(strides: tuple[int, ...]) -> None:
    assert is_dense((2, 3, 2), (6, 2, 1))
    assert not is_dense((2, 3, 2), strides)


@pytest.mark.parametrize("stride", [-1, 7, 2**62])
def test_the_stride_of_a_size_one_dimension_is_bounded(stride: int) -> None:
    assert is_dense((1, 3, 2), (6, 2, 1))
    assert not is_dense((1, 3, 2), (stride, 2, 1))


def test_a_layout_without_tensors_still_has_a_slot() -> None:
    layout = Layout([], 1)
    assert layout.slot_bytes == ALIGNMENT
    assert layout.views(np.zeros(layout.slot_bytes, np.uint8), 1) == ()


@pytest.mark.parametrize("batch", [3, 1000, -1])
def test_too_many_images_are_refused(batch: int) -> None:
    layout = Layout([TensorSpec("a", (3,), FLOAT32), TensorSpec("b", (3,), FLOAT32)], 2)
    with pytest.raises(SplitInferError, match=f"for 2 images cannot hold {batch}"):
        layout.views(np.zeros(layout.slot_bytes, np.uint8), batch)


@pytest.mark.parametrize(
    ("order", "is_kept"), [((0, 1, 2, 3), True), ((0, 2, 3, 1), True), ((2, 0, 1, 3), False), ((1, 2, 3, 0), False)]
)
def test_batched_strides_let_the_first_images_be_dense(order: tuple[int, ...], is_kept: bool) -> None:
    tensor = torch.rand(3, 4, 5, 6).permute(order).contiguous()
    tensor = tensor.permute([order.index(dimension) for dimension in range(4)])
    strides = batched_strides(tensor)
    assert strides == batched_strides(as_array(tensor))
    assert strides_of(as_array(tensor)) == tensor.stride()
    assert is_dense((2, 4, 5, 6), strides)
    assert (strides == tensor.stride()) == is_kept
