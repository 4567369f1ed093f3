"""How features get into a slot."""

from __future__ import annotations

import torch
from torch import Tensor

from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.slot_memory import SlotMemory

SPECS = (TensorSpec("maps", (3, 4, 5), torch.float32), TensorSpec("ids", (7,), torch.int64))


def slot_memory() -> SlotMemory:
    return SlotMemory.allocate(Layout(SPECS, 3), 2, Place())


def test_what_fills_a_slot_writes_where_readers_read() -> None:
    slots = slot_memory()
    places: list[int] = []

    def compute(views: tuple[Tensor, ...]) -> None:
        for view, spec in zip(views, SPECS, strict=True):
            assert view.shape == (2, *spec.shape)
            assert view.dtype == spec.dtype
            assert view.is_contiguous()
            view.copy_(torch.arange(view.numel()).view(view.shape))
            places.append(view.data_ptr())

    slots.fill(1, 2, compute)
    read = slots.views(1, 2)
    assert [view.data_ptr() for view in read] == places
    assert all(torch.equal(view.flatten(), torch.arange(view.numel()).to(view.dtype)) for view in read)


def test_a_filled_slot_forgets_the_strides_of_an_earlier_write() -> None:
    slots = slot_memory()
    maps = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    slots.write(0, (maps, torch.zeros(2, 7, dtype=torch.int64)))
    assert slots.views(0, 2)[0].stride() == maps.stride()
    slots.fill(0, 3, lambda views: views[0].fill_(5.0))
    assert slots.views(0, 3)[0].is_contiguous()
    assert (slots.views(0, 3)[0] == 5).all()
    slots.write(0, (maps, torch.zeros(2, 7, dtype=torch.int64)))
    assert torch.equal(slots.views(0, 2)[0], maps)
