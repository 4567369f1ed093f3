"""Runs a backbone so that its features end in a slot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from split_infer_ros.buffers.host_arrays import Values, as_tensor
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.engines.module_state import is_module

_LOG = logging.getLogger(__name__)

Images = Values  # a batch as a backbone takes it, on its device
Features = Sequence[Values]
Backbone = Callable[[Any], Features]
Head = Callable[..., Features]  # maps features to the model's outputs
Store = Callable[[SlotMemory, int], None]  # leaves features in a slot, given the pool's memory and the slot's index


def backbone_for(slots: SlotMemory, backbone: Backbone) -> Backbone:
    """Returns a backbone in the form that needs no copy to leave its features in these slots.

    Slots that hold tensors need no other form. Otherwise the last operators are kept apart from the rest, so that they
    can write into a slot themselves. The log names the features for which that is not possible.
    """
    if slots.holds_tensors or not is_module(backbone):
        return backbone
    from split_infer_ros.engines.writing_part import WritingPart, writing_part  # only here: it imports torch

    writing = writing_part(backbone)
    if not isinstance(writing, WritingPart):
        _LOG.info("Each batch's features are copied into a slot, because no last operator can write them there.")
    elif writing.copied:
        _LOG.info("Of each batch's features, these are copied into a slot: %s.", ", ".join(writing.copied))
    return writing


def compute_into_slot(backbone: Backbone, images: Images, slots: SlotMemory, slot: int) -> None:
    """Runs a backbone, in the device's current stream, and leaves its features in a slot.

    Args:
        backbone: maps images to the values of the slot's layout.
        images: n of them on the backbone's device, in the shape that it takes.
        slots: the memory of the pool.
        slot: the index of the slot.
    """
    if isinstance(backbone, EnginePart) and backbone.can_run_into:
        slots.fill(slot, len(images), lambda views: backbone.run_into(views, images))
    else:
        start_backbone(backbone, images)(slots, slot)


def start_backbone(backbone: Backbone, images: Images, batched: bool = False) -> Store:
    """Runs all of a backbone but its last operators, in the device's current stream.

    Args:
        backbone: maps images to features.
        images: n of them on the backbone's device, in the shape that it takes.
        batched: whether one image must follow the other in the slot, because fewer may be read than are written.

    Returns:
        What runs the last operators, so that they write into a slot. The features of a backbone without such operators
        are put there as they are.
    """
    if is_module(backbone):
        from split_infer_ros.engines.writing_part import WritingPart  # only here: it imports torch

        if isinstance(backbone, WritingPart):
            started, count = backbone.start(as_tensor(images), batched=batched), len(images)
            return lambda slots, slot: slots.fill(slot, count, started.finish, started.strides)
    features = backbone(images)
    return lambda slots, slot: slots.write(slot, features, batched)
