"""How the features of a backbone get into a slot. The same kernels run in every way, so the bits are the same."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.profiler import ProfilerActivity, profile

from split_infer_ros.buffers.host_arrays import FLOAT32, as_array
from split_infer_ros.buffers.layout import Layout, TensorSpec, strides_of
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.compute import backbone_for, compute_into_slot
from split_infer_ros.engines.writing_part import WritingPart

pytestmark = pytest.mark.numeric

SPECS = (TensorSpec("sum", (3, 4, 4), FLOAT32), TensorSpec("norm", (3, 4, 4), FLOAT32))
LAYOUT = Layout(SPECS, 2)


class Net(nn.Module):
    """Gives a sum, which can be written into given memory, and a layer norm, which cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([3, 4, 4])

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images + images.sigmoid(), self.norm(images)


def slots_of(shared: bool) -> SlotMemory:
    def make(_: int, place: Place) -> Memory:
        return allocate(place.policy, LAYOUT.slot_bytes, place.device)

    return SlotMemory.allocate(LAYOUT, 1, Place(), make=make if shared else None)


@pytest.mark.parametrize("shared", [False, True])
@torch.inference_mode()
def test_slot_has_the_features(shared: bool) -> None:
    part, slots = fx.symbolic_trace(Net()), slots_of(shared)
    backbone, images = backbone_for(slots, part), torch.randn(2, 3, 4, 4)
    assert isinstance(backbone, WritingPart) == shared
    compute_into_slot(backbone, images, slots, 0)
    for found, expected in zip(slots.views(0, 2), part(images), strict=True):
        assert np.array_equal(found, expected)


class Named(nn.Module):
    """Has a module of the name of ``WritingPart.start``."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv2d(3, 3, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        found = self.start(images)
        return found, found.neg()


@pytest.mark.parametrize("shared", [False, True])
@torch.inference_mode()
def test_a_model_may_call_a_module_start(shared: bool) -> None:
    part, slots = fx.symbolic_trace(Named()), slots_of(shared)
    images = torch.randn(2, 3, 4, 4)
    compute_into_slot(backbone_for(slots, part), images, slots, 0)
    for found, expected in zip(slots.views(0, 2), part(images), strict=True):
        assert np.array_equal(found, expected)


class Sums(nn.Module):
    """Gives two sums, which can be written into given memory."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images + images.sigmoid(), images * images.sigmoid()


def copies_of(work: Callable[[], object]) -> int:
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    return sum(each.name == "aten::copy_" for each in found.events())  # type: ignore[union-attr]


@torch.inference_mode()
def test_a_module_of_torch_writes_into_slots_of_arrays_without_a_copy() -> None:
    part, slots = fx.symbolic_trace(Sums()), slots_of(shared=True)
    backbone = backbone_for(slots, part)
    images = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    compute_into_slot(backbone, images, slots, 0)  # the forms are tried here
    compute_into_slot(backbone, torch.zeros_like(images), slots, 0)
    assert copies_of(lambda: compute_into_slot(backbone, images, slots, 0)) == 0
    for found, expected in zip(slots.views(0, 2), part(images), strict=True):
        assert isinstance(found, np.ndarray)
        assert strides_of(found) == expected.stride()
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("shared", [False, True])
def test_a_part_of_another_engine_writes_arrays_into_the_slot(shared: bool) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from small_graphs import images, small_graph

    from split_infer_ros.engines.onnxruntime_part import OnnxRuntimePart

    part, given = OnnxRuntimePart(small_graph()), as_array(images(2))
    layout = Layout([TensorSpec(each.name, each.shape[1:], each.dtype) for each in part.graph.outputs], 2)
    slots = SlotMemory.allocate(
        layout,
        1,
        Place(),
        make=(lambda _, place: allocate(place.policy, layout.slot_bytes, place.device)) if shared else None,
    )
    assert backbone_for(slots, part) is part
    compute_into_slot(part, given, slots, 0)
    for found, expected in zip(slots.views(0, 2), part(given), strict=True):
        assert isinstance(found, np.ndarray)
        assert np.array_equal(found, expected)


def test_log_names_what_is_copied(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        backbone_for(slots_of(shared=True), fx.symbolic_trace(Net()))
        backbone_for(slots_of(shared=True), nn.Identity())
        backbone_for(slots_of(shared=False), fx.symbolic_trace(Net()))
    assert [record.getMessage() for record in caplog.records] == [
        "Of each batch's features, these are copied into a slot: norm.",
        "Each batch's features are copied into a slot, because no last operator can write them there.",
    ]
