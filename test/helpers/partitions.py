"""Makes the two partitions of a model, and runs both as the pipeline does."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, fx, nn

from split_infer_ros.buffers.host_arrays import as_tensor
from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.partitions import backbone_of, head_of
from split_infer_ros.split.split_points import SplitPoint


@dataclass(frozen=True, slots=True)
class Partitions:
    """The two partitions of a model: ``head(*backbone(images))`` is the whole model.

    Attributes:
        backbone: maps images (N, C, H, W) to a tuple of the split point's tensors.
        head: maps the split point's tensors to a tuple of the model's outputs.
    """

    backbone: nn.Module
    head: nn.Module


def split(graph: fx.GraphModule, split_point: SplitPoint) -> Partitions:
    """Returns the two partitions of a traced model at a split point."""
    return Partitions(backbone_of(graph, split_point), head_of(graph, split_point))


def partitions_of(model: SplitModel, name: str) -> Partitions:
    """Returns both partitions of a prepared model at the split point ``name``."""
    return Partitions(model.backbone(name), model.head(name))


def through_a_slot(split_point: SplitPoint, backbone: nn.Module, head: nn.Module, images: Tensor) -> tuple[Tensor, ...]:
    """Runs the backbone, writes the features into a slot, and runs the head on the slot. Returns the head's outputs.

    The results equal the whole model's bit for bit on any processor. The same operations run with the same batch and
    number of threads, on features that have the same layout in the slot as when they were computed.
    """
    features = backbone(images.clone())
    slots = SlotMemory.allocate(Layout(split_point.tensors, len(images) + 1), 1, Place())
    slots.write(0, features)
    views = tuple(map(as_tensor, slots.views(0, len(images))))
    for view, feature in zip(views, features, strict=True):
        assert (view.shape, view.dtype) == (feature.shape, feature.dtype), split_point.name
    outputs: tuple[Tensor, ...] = head(*views)
    return outputs
