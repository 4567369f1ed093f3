"""A model's two partitions, one after the other, as the pipeline runs them."""

from __future__ import annotations

from torch import Tensor, nn

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.split.split_points import SplitPoint


def through_a_slot(split_point: SplitPoint, backbone: nn.Module, head: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """Backbone, then its features as a slot holds them, then head.

    The results are the whole model's bit for bit, on any processor: the same operations run with the same batch and
    threads, on features that lie in the slot as they lay when they were computed.
    """
    features = backbone(images.clone())
    slots = SlotMemory.allocate(Layout(split_point.tensors, len(images) + 1), 1, Place())
    slots.write(0, features)
    views = slots.views(0, len(images))
    for view, feature in zip(views, features, strict=True):
        assert (view.shape, view.dtype) == (feature.shape, feature.dtype), split_point.name
    outputs: tuple[Tensor, ...] = head(*views)
    return outputs
