"""How the features of a backbone get into a slot. The same kernels run in every way, so the bits are the same."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.compute import backbone_for, compute_into_slot
from split_infer_ros.engines.writing_part import WritingPart

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


def test_log_names_what_is_copied(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        backbone_for(slots_of(shared=True), fx.symbolic_trace(Net()))
        backbone_for(slots_of(shared=True), nn.Identity())
        backbone_for(slots_of(shared=False), fx.symbolic_trace(Net()))
    assert [record.getMessage() for record in caplog.records] == [
        "Of each batch's features, these are copied into a slot: norm.",
        "Each batch's features are copied into a slot, because no last operator can write them there.",
    ]
