"""Runs a backbone so that its features end in a slot."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from split_infer_ros.buffers.host_arrays import Values, as_tensor
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.engines.engine_part import EnginePart
from split_infer_ros.torch_graphs.module_state import is_module

_LOG = logging.getLogger(__name__)

Images = Values  # a batch in the form that a backbone takes, on the backbone's device
Features = Sequence[Values]
Backbone = Callable[[Any], Features]
Head = Callable[..., Features]  # maps features to the model's outputs
Store = Callable[[SlotMemory, int], None]  # leaves features in a slot, given the pool's memory and the slot's index


def backbone_for(slots: SlotMemory, backbone: Backbone) -> Backbone:
    """Returns a backbone that writes its features into these slots without a copy, as far as possible.

    If the slots hold tensors, the backbone stays as it is. Otherwise its last operators are separated from the rest, so
    that they can write into a slot. The log names the features that must be copied.
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
    """Runs a backbone in the device's current stream, and leaves its features in a slot.

    Args:
        backbone: maps images to the values of the slot's layout.
        images: a batch of images on the backbone's device, in the shape that the backbone takes.
        slots: the pool's memory.
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
        images: a batch of images on the backbone's device, in the shape that the backbone takes.
        batched: whether one image must follow the other in the slot, because readers may read fewer than are written.

    Returns:
        A function that takes the pool's memory and a slot's index. It runs the last operators, which write into the
        slot. If the backbone has no operators that can do so, all have run, and the function copies the features there.
    """
    if is_module(backbone):
        from split_infer_ros.engines.writing_part import WritingPart  # only here: it imports torch

        if isinstance(backbone, WritingPart):
            started, count = backbone.start(as_tensor(images), batched=batched), len(images)
            return lambda slots, slot: slots.fill(slot, count, started.finish, started.strides)
    features = backbone(images)
    return lambda slots, slot: slots.write(slot, features, batched)
