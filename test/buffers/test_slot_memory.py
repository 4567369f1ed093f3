"""How features get into a slot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from split_infer_ros.buffers.host_arrays import FLOAT32, Array, Values, as_array
from split_infer_ros.buffers.layout import Layout, TensorSpec, strides_of
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slot_memory import SlotMemory

SPECS = (TensorSpec("maps", (3, 4, 5), FLOAT32), TensorSpec("ids", (7,), np.dtype(np.int64)))


def slot_memory() -> SlotMemory:
    return SlotMemory.allocate(Layout(SPECS, 3), 2, Place())


def test_what_fills_a_slot_writes_where_readers_read() -> None:
    slots = slot_memory()
    places: list[int] = []

    def compute(views: tuple[Array, ...]) -> None:
        for view, spec in zip(views, SPECS, strict=True):
            assert view.shape == (2, *spec.shape)
            assert view.dtype == spec.dtype
            assert view.flags.c_contiguous
            view[...] = np.arange(view.size).reshape(view.shape)
            places.append(view.ctypes.data)

    slots.fill(1, 2, compute)
    read = slots.views(1, 2)
    assert [view.ctypes.data for view in read] == places
    assert all(np.array_equal(view.ravel(), np.arange(view.size).astype(view.dtype)) for view in read)


def test_a_filled_slot_forgets_the_strides_of_an_earlier_write() -> None:
    slots = slot_memory()
    maps = torch.rand(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    slots.write(0, (maps, torch.zeros(2, 7, dtype=torch.int64)))
    assert strides_of(slots.views(0, 2)[0]) == maps.stride()
    slots.fill(0, 3, lambda views: views[0].fill(5.0))
    assert as_array(slots.views(0, 3)[0]).flags.c_contiguous
    assert (slots.views(0, 3)[0] == 5).all()
    slots.write(0, (maps, torch.zeros(2, 7, dtype=torch.int64)))
    assert np.array_equal(slots.views(0, 2)[0], maps)


def features_of(batch: int) -> tuple[Tensor, Tensor]:
    maps = torch.rand(batch, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    return maps, torch.arange(7 * batch).view(batch, 7)


def arrays_of(batch: int) -> tuple[Array, Array]:
    maps, ids = features_of(batch)
    return as_array(maps), as_array(ids)


def test_what_fills_a_slot_gets_views_of_the_strides_that_it_asks_for() -> None:
    slots, (maps, ids) = slot_memory(), features_of(2)

    def compute(views: tuple[Array, ...]) -> None:
        assert strides_of(views[0]) == maps.stride()
        np.add(maps, 1, out=views[0])
        views[1][...] = ids

    slots.fill(0, 2, compute, (maps.stride(), ids.stride()))
    assert strides_of(slots.views(0, 2)[0]) == maps.stride()
    assert np.array_equal(slots.views(0, 2)[0], maps + 1)


def test_a_slot_of_this_process_holds_arrays() -> None:
    slots, arrays = slot_memory(), arrays_of(2)
    slots.write(0, arrays)
    assert [view.ctypes.data for view in slots.views(0, 2)] == [array.ctypes.data for array in arrays]
    assert [strides_of(view) for view in slots.views(0, 2)] == [strides_of(array) for array in arrays]
    assert [len(view) for view in slots.views(0, 1)] == [1, 1]


def test_a_slot_of_this_process_holds_what_inference_made() -> None:
    slots = slot_memory()
    with torch.inference_mode():
        tensors = features_of(2)
        slots.write(0, tensors)
    views = slots.views(0, 2)
    assert [view.data_ptr() for view in views] == [tensor.data_ptr() for tensor in tensors]
    assert [view.stride() for view in views] == [tensor.stride() for tensor in tensors]
    assert [len(view) for view in slots.views(0, 1)] == [1, 1]


@pytest.mark.parametrize("make", [features_of, arrays_of])
def test_a_held_batch_ends_with_the_next_write(make: Callable[[int], tuple[Values, ...]]) -> None:
    slots = slot_memory()
    with torch.inference_mode():
        given = make(2)
        slots.write(0, given)
    slots.fill(0, 1, lambda views: views[0].fill(5.0))
    assert (slots.views(0, 1)[0] == 5).all()
    assert not (as_array(given[0]) == 5).any()


@pytest.mark.parametrize("kind", ["weight", "view of a weight", "with gaps", "of another dtype"])
def test_what_others_own_or_read_otherwise_is_copied(kind: str) -> None:
    weight = torch.rand(2, 3, 4, 5)  # made outside of inference mode, as weights are
    with torch.inference_mode():
        given = {
            "weight": weight,
            "view of a weight": weight[:1],
            "with gaps": torch.rand(2, 6, 4, 5)[:, ::2],
            "of another dtype": torch.rand(2, 3, 4, 5).half(),
        }[kind]
        slots = slot_memory()
        slots.write(0, (given, torch.zeros(len(given), 7, dtype=torch.int64)))
    found, _ = slots.views(0, len(given))
    assert not np.shares_memory(found, as_array(given))
    assert np.array_equal(found, given.float())


@pytest.mark.parametrize("kind", ["with gaps", "of another dtype"])
def test_arrays_that_readers_see_otherwise_are_copied(kind: str) -> None:
    rng, slots = np.random.default_rng(1), slot_memory()
    given = {
        "with gaps": rng.random((2, 6, 4, 5), np.float32)[:, ::2],
        "of another dtype": rng.random((2, 3, 4, 5)),
    }[kind]
    slots.write(0, (given, np.zeros((2, 7), np.int64)))
    found, _ = slots.views(0, 2)
    assert not np.shares_memory(found, given)
    assert np.array_equal(found, given.astype(np.float32))


@pytest.mark.parametrize("make", [features_of, arrays_of])
def test_memory_that_another_process_reads_holds_no_values(make: Callable[[int], tuple[Values, ...]]) -> None:
    layout = Layout(SPECS, 3)
    slots = SlotMemory.allocate(
        layout, 1, Place(), make=lambda _, place: allocate(place.policy, layout.slot_bytes, place.device)
    )
    with torch.inference_mode():
        given = make(2)
        slots.write(0, given)
    for found, expected in zip(slots.views(0, 2), given, strict=True):
        assert not np.shares_memory(found, as_array(expected))
        assert np.array_equal(found, expected)
        assert strides_of(found) == strides_of(expected)


def test_a_slot_is_lent_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Memory, "give_to_device", lambda memory: calls.append("device"))
    monkeypatch.setattr(Memory, "give_to_host", lambda memory: calls.append("host"))
    slots = slot_memory()
    with slots.lent_to_device(0):
        slots.fill(0, 1, lambda views: calls.append("work"))
    with pytest.raises(ValueError, match="no work"), slots.lent_to_device(0):
        raise ValueError("no work")
    assert calls == ["device", "work", "host", "device", "host"]


def test_a_slot_of_the_device_is_given_back_once_its_bytes_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, the CPU may not touch memory that only one side at a time may use."""
    calls: list[str] = []
    monkeypatch.setattr(Memory, "give_to_device", lambda memory: calls.append("device"))
    monkeypatch.setattr(Memory, "give_to_host", lambda memory: calls.append("host"))
    layout = Layout(SPECS, 3)
    host, device = (np.zeros(layout.slot_bytes, np.uint8) for _ in range(2))
    slots = SlotMemory(layout, [Memory(Policy.DEVICE, host, device)])
    given = arrays_of(2)
    slots.write(0, given)
    assert calls == ["device"]
    slots.fetch(0, 2)
    assert calls == ["device", "host"]
    assert all(map(np.array_equal, slots.views(0, 2), given))
