"""Prepares a model with packed weights for its turns.

It measures a profile of layers and disk, predicts the trade-off between memory and delay, and chooses a point for
`auto`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.demand_layering import child
from split_infer_ros.split.load import load_model
from split_infer_ros.split.model import SplitModel
from split_infer_ros.split.model_spec import ModelSpec
from split_infer_ros.weight_streaming.automatic_memory import TRIAL_PASSES
from split_infer_ros.weight_streaming.delay_model import StreamingProfile
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.pack import pack_model
from split_infer_ros.weight_streaming.packed_partition import PackedPartition
from split_infer_ros.weight_streaming.packed_weights import streamable
from split_infer_ros.weight_streaming.profiling import measure_passes, profile_partition
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_plan import min_capacity
from split_infer_ros.weight_streaming.ring_size import AllowedDelay, RingTrial, choose_measured, predict_trade_off
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

ALLOWED = AllowedDelay(1e-3)
MAX_SHARE = 0.25  # the most that auto may hold, as a share of one copy of the weights
RING_SHARE = 0.9  # the ring's share of that; memory around the ring is measured from outside as well
PROFILE_PASSES = 3


@dataclass(frozen=True)
class PlannedModel:
    """A model that is ready for its turns.

    Attributes:
        name: the model's name.
        path: the file of its packed weights.
        model: the model with its own weights.
        images: a batch of one image. All residencies run on it.
        packed: the places of the model's weights in the file.
        trials: the predicted points of the trade-off between memory and delay.
        chosen: the point that ``auto`` chooses.
    """

    name: str
    path: Path
    model: SplitModel
    images: Tensor
    packed: PackedPartition
    trials: Sequence[RingTrial]
    chosen: RingTrial

    def partition(self, residency: str, trial: RingTrial | None = None) -> child.Partition:
        """Returns the model with its weights in a residency.

        ``auto`` has the memory of ``trial``; if that is None, the memory of the chosen point.
        """
        if residency == child.RESIDENT:
            return self.model.backbone("output")  # its convolutions have packed weights like all others
        return child.open_partition(self.model, self.path, residency, auto_plan(self.packed, trial or self.chosen))

    def profile(self, passes: int) -> StreamingProfile:
        """Measures and returns the profile of layers and disk as they are now, in ``passes`` passes."""
        return _profile(self.model, self.path, self.packed, self.images, passes)

    def predicted_plans(self) -> dict[str, MemoryPlan]:
        """Returns the memory plan of each residency that streams. Delays are predicted from these plans."""
        fixed = (Residency.SYNCHRONOUS, Residency.ASYNCHRONOUS, Residency.TWO_STAGE)
        plans = {each.value: plan_memory(each, self.packed.block_sizes, self.packed.step_blocks) for each in fixed}
        return plans | {child.AUTO: self.chosen.memory_plan}


def plan_model(name: str, path: Path) -> PlannedModel:
    """Packs a model's weights into the file ``path``, profiles the model, and chooses a point of the trade-off."""
    model = load_model(ModelSpec(name, "random", "cpu"))
    pack_model(streamable(model), path, num_threads=torch.get_num_threads())
    images = child.images_of(model)
    packed = child.open_whole(model, path, num_threads=torch.get_num_threads())

    def time_passes(trial: RingTrial) -> list[float]:
        with closing(_open(model, path, trial.memory_plan)) as partition:
            return measure_passes(partition, [images], TRIAL_PASSES)

    smallest = min_capacity(packed.block_sizes, packed.step_blocks)
    with torch.inference_mode():
        profile = _profile(model, path, packed, images, PROFILE_PASSES)
        trials = predict_trade_off(
            packed.block_sizes,
            packed.step_blocks,
            profile,
            max_bytes=max(RING_SHARE * MAX_SHARE * sum(packed.block_sizes), smallest),
            allowed=ALLOWED,
        )
        chosen = choose_measured(trials, profile.compute_s, ALLOWED, time_passes)
    return PlannedModel(
        name=name,
        path=path,
        model=model,
        images=images,
        packed=packed,
        trials=trials,
        chosen=chosen,
    )


def _profile(model: SplitModel, path: Path, packed: PackedPartition, images: Tensor, passes: int) -> StreamingProfile:
    return profile_partition(
        partial(_open, model, path), packed.block_sizes, packed.step_blocks, inputs=[images], passes=passes
    )


def _open(model: SplitModel, path: Path, memory_plan: MemoryPlan) -> StreamedPartition:
    return StreamedPartition.open(child.open_whole(model, path, num_threads=torch.get_num_threads()), memory_plan)


def auto_plan(packed: PackedPartition, trial: RingTrial) -> child.AutoPlan:
    """Returns the memory of a trial in the form that ``child`` takes."""
    plan = child.AutoPlan(trial.memory_plan.resident_blocks, trial.memory_plan.ring.capacity)
    return plan if plan.memory_plan(packed) == trial.memory_plan else plan._replace(has_two_buffers=1)


def spread_trials(planned: PlannedModel, count: int) -> list[RingTrial]:
    """Returns about ``count`` trials, spread evenly over the trade-off.

    Trials with the memory plan of a residency are left out.
    """
    trials, plans = planned.trials, planned.predicted_plans().values()
    indices = sorted({round(index * (len(trials) - 1) / max(1, count - 1)) for index in range(count)})
    return [trials[index] for index in indices if trials[index].memory_plan not in plans]
