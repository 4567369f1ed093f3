"""A model with packed weights on this machine: its layers timed, its trade-off predicted, `auto`'s point chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import _layering_child as child
import torch
from torch import Tensor

from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.delay_model import Machine
from split_infer_ros.weight_streaming.layer_times import time_model
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.residency import RESIDENT, TWO_STAGE, place
from split_infer_ros.weight_streaming.ring import RingPlan, least_capacity
from split_infer_ros.weight_streaming.ring_size import RingTrial, choose, trade_off
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

ALLOWED_S = 1e-3
SHARE = 0.25  # of one copy of its weights, that auto may hold
ROOM = 0.9  # of that for the ring: what else comes with it is seen from outside as well


@dataclass(frozen=True)
class Planned:
    """What is known of a model before ways take turns.

    Attributes:
        name: of the model.
        path: of its packed weights.
        model: with its own weights.
        images: one image, on which all ways run.
        contents: what it reads.
        points: of the trade-off, as predicted.
        chosen: the one that ``auto`` takes.
    """

    name: str
    path: Path
    model: SplitModel
    images: Tensor
    contents: child.Contents
    points: Sequence[RingTrial]
    chosen: RingTrial

    def partition(self, way: str, point: RingTrial | None = None) -> child.Half:
        """The model with its weights in that way; ``auto`` at that point of the trade-off, or at the chosen one."""
        if way == RESIDENT:
            return self.model.backbone("output")  # packed as well as all others are
        return child.make(self.model, self.path, way, placement(point or self.chosen))

    def timed(self, passes: int) -> Machine:
        """Layers and disk, as they are timed now."""
        return _timed(self.model, self.path, self.contents, self.images, passes)

    def predicted(self) -> dict[str, RingPlan]:
        """The ways that are points of the trade-off: its smallest ring, and the chosen one."""
        smallest = place(TWO_STAGE, self.contents.sizes, self.contents.uses)
        return {TWO_STAGE: smallest.plan, child.CHOSEN: self.chosen.placement.plan}


def plan(name: str, path: Path) -> Planned:
    """Pack a model's weights, time its layers as they run on streamed weights, and choose."""
    model = load_model(ModelSpec(name, "random", "cpu"))
    pack_model(model, path, torch.get_num_threads())
    images, contents = child.images_of(model), child.contents_of(model, path)
    with torch.inference_mode():
        machine = _timed(model, path, contents, images, 3)
    most = max(ROOM * SHARE * sum(contents.sizes), least_capacity(contents.sizes, contents.uses))
    points = trade_off(contents.sizes, contents.uses, machine, most, ALLOWED_S)
    return Planned(name, path, model, images, contents, points, choose(points, machine.compute, ALLOWED_S))


def _timed(model: SplitModel, path: Path, contents: child.Contents, images: Tensor, passes: int) -> Machine:
    def make(ring: RingPlan) -> StreamedPartition:
        return StreamedPartition(child.contents_of(model, path), ring)

    return time_model(make, contents.sizes, contents.uses, [images], passes)


def placement(point: RingTrial) -> tuple[int, int]:
    """Blocks that stay at that point, and bytes of the ring."""
    return point.placement.resident, point.placement.plan.capacity


def spread(planned: Planned, count: int) -> list[RingTrial]:
    """So many points from one end of the trade-off to the other, without those that are ways of their own."""
    points, ways = planned.points, planned.predicted().values()
    places = sorted({round(index * (len(points) - 1) / max(1, count - 1)) for index in range(count)})
    return [points[place] for place in places if points[place].placement.plan not in ways]
