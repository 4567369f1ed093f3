from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from split_infer_ros.buffers.layout import ALIGNMENT, Layout, TensorSpec
from split_infer_ros.errors import SplitInferError

DTYPES = (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool)

specs = st.lists(
    st.builds(
        TensorSpec,
        name=st.just("x"),
        shape=st.lists(st.integers(1, 5), max_size=4).map(tuple),
        dtype=st.sampled_from(DTYPES),
        channels_last=st.booleans(),
    ),
    max_size=4,
)


@given(specs=specs, batch_size=st.integers(1, 4), data=st.data())
def test_views_lie_apart_inside_the_slot_and_are_not_copies(
    specs: list[TensorSpec], batch_size: int, data: st.DataObject
) -> None:
    layout = Layout(specs, batch_size)
    slot = torch.zeros(layout.slot_bytes, dtype=torch.uint8)
    batch = data.draw(st.integers(1, batch_size))
    views = layout.views(slot, batch)
    assert len(views) == len(specs)
    start, end = slot.data_ptr(), slot.data_ptr() + slot.nbytes
    reached = start
    for spec, view in zip(specs, views, strict=True):
        assert view.shape == (batch, *spec.shape)
        assert view.dtype == spec.dtype
        assert reached <= view.data_ptr()
        assert (view.data_ptr() - start) % ALIGNMENT == 0
        reached = view.data_ptr() + view.numel() * view.element_size()
        assert reached <= end
    for index, view in enumerate(views):  # what is written through one is seen through no other
        before = slot.clone()
        view.copy_(torch.ones_like(view) if view.dtype == torch.bool else torch.full_like(view, 7))
        for number, (other, untouched) in enumerate(zip(views, layout.views(before, batch), strict=True)):
            assert number == index or torch.equal(other, untouched)


def test_a_full_batch_fits_exactly() -> None:
    layout = Layout([TensorSpec("a", (3, 5), torch.float32), TensorSpec("b", (7,), torch.uint8)], 4)
    assert layout.offsets == [0, ALIGNMENT]
    assert layout.slot_bytes == 2 * ALIGNMENT
    assert layout.specs[0].bytes_per_image == 60


def test_channels_last_is_how_it_lies_not_how_it_looks() -> None:
    layout = Layout([TensorSpec("x", (3, 4, 5), torch.float32, channels_last=True)], 2)
    (view,) = layout.views(torch.zeros(layout.slot_bytes, dtype=torch.uint8), 2)
    assert view.shape == (2, 3, 4, 5)
    assert view.stride() == (60, 1, 15, 3)
    assert view.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(6,), (2, 3), (2, 3, 4, 5)])
def test_channels_last_means_nothing_but_for_feature_maps(shape: tuple[int, ...]) -> None:
    layout = Layout([TensorSpec("x", shape, torch.float32, channels_last=True)], 2)
    (view,) = layout.views(torch.zeros(layout.slot_bytes, dtype=torch.uint8), 2)
    assert view.is_contiguous()
    assert view.shape == (2, *shape)
    assert math.prod(shape) * 4 == layout.specs[0].bytes_per_image


def test_nothing_to_carry_still_has_a_slot() -> None:
    layout = Layout([], 1)
    assert layout.slot_bytes == ALIGNMENT
    assert layout.views(torch.zeros(layout.slot_bytes, dtype=torch.uint8), 1) == ()


@pytest.mark.parametrize("batch", [3, 1000, -1])
def test_more_images_than_there_is_room_for_are_refused(batch: int) -> None:
    layout = Layout([TensorSpec("a", (3,), torch.float32), TensorSpec("b", (3,), torch.float32)], 2)
    with pytest.raises(SplitInferError, match=f"for 2 images cannot hold {batch}"):
        layout.views(torch.zeros(layout.slot_bytes, dtype=torch.uint8), batch)
