"""Runs a backbone so that its features end in a slot."""

from __future__ import annotations

from torch import Tensor

from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.pipeline.cuda_graphs import Backbone


def compute_into_slot(backbone: Backbone, images: Tensor, slots: SlotMemory, slot: int) -> None:
    """Runs a backbone, in the device's current stream, and leaves its features in a slot.

    An engine's part writes them there itself. What torch computes lies elsewhere first and is copied.

    Args:
        backbone: maps images to the tensors of the slot's layout.
        images: (n, 3, h, w) on the backbone's device.
        slots: the memory of the pool.
        slot: the index of the slot.
    """
    if isinstance(backbone, EnginePart) and backbone.can_run_into:
        slots.fill(slot, len(images), lambda views: backbone.run_into(views, images))
    else:
        slots.write(slot, backbone(images))
