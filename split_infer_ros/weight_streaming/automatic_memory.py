"""Chooses the memory of streamed weights for ``weights_residency: auto``.

Layers and disk are timed first. The delays of all plans follow from these times. The best few plans are then measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

import torch
from torch import Tensor

from split_infer_ros.errors import ConfigurationError, StreamError
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.num_threads import run_with_threads
from split_infer_ros.runtime.streams import Stream
from split_infer_ros.weight_streaming.delay_model import StreamingProfile
from split_infer_ros.weight_streaming.memory_plan import MemoryPlan
from split_infer_ros.weight_streaming.packed_partition import PackedPartition
from split_infer_ros.weight_streaming.partition_spec import PartitionSpec
from split_infer_ros.weight_streaming.profiling import measure_passes, profile_partition
from split_infer_ros.weight_streaming.residency import Residency, plan_memory
from split_infer_ros.weight_streaming.ring_size import RingTrial, choose_measured, predict_trade_off
from split_infer_ros.weight_streaming.settings import WeightsSettings
from split_infer_ros.weight_streaming.streamed_partition import StreamedPartition

PROFILE_PASSES = 4
TRIAL_PASSES = 6  # of each of the best plans; the first one does not count

Found = TypeVar("Found")

OpenPartition = Callable[[MemoryPlan], StreamedPartition]
"""Opens a partition whose steps are timed."""


def choose_memory(
    spec: PartitionSpec, settings: WeightsSettings, packed: PackedPartition, openers: Mapping[bool, OpenPartition]
) -> MemoryPlan:
    """Returns the plan with the least memory that delays a pass by no more than the settings allow.

    Delays are compared with the fastest pass that never waits for weights. They are predicted for all plans, and
    measured for the best few.

    Args:
        spec: the partition.
        settings: the memory budget and the allowed delay.
        packed: the partition's weights.
        openers: functions that open the pipelines to choose from. The one under True copies blocks to the device.
            Under False, layers read the memory to which the disk writes.

    Raises:
        ConfigurationError: the budget is too small for any ring, or no pipeline runs here.
    """
    trials: list[RingTrial] = []
    compute_s: list[float] = []
    refusals: list[Exception] = []
    for is_copied, open_partition in openers.items():
        try:
            plan_in_budget(Residency.TWO_STAGE, settings, packed, is_copied)  # the smallest ring must fit
            profile = _profile(spec, packed, open_partition, is_copied)
        except (ConfigurationError, StreamError) as refusal:
            refusals.append(refusal)
            continue
        compute_s.append(profile.compute_s)
        trials += predict_trade_off(
            packed.block_sizes,
            packed.step_blocks,
            profile,
            max_bytes=settings.weights_budget_bytes - packed.kept_bytes,
            allowed=settings.allowed_delay,
            is_copied=is_copied,
        )
    if not trials:
        raise refusals[0]
    resident_s, allowed = min(compute_s), settings.allowed_delay

    def time_passes(trial: RingTrial) -> list[float]:
        return _time_passes(spec, openers[trial.memory_plan.staging is not None], trial)

    return choose_measured(trials, resident_s, allowed, time_passes).memory_plan


def plan_in_budget(
    residency: Residency, settings: WeightsSettings, packed: PackedPartition, is_copied: bool = False
) -> MemoryPlan:
    """Plans the memory of a partition's pipeline within the settings' budget; see ``plan_memory``.

    Raises:
        ConfigurationError: as for ``plan_memory``.
    """
    return plan_memory(
        residency,
        packed.block_sizes,
        packed.step_blocks,
        budget_bytes=settings.weights_budget_bytes,
        kept_bytes=packed.kept_bytes,
        is_copied=is_copied,
    )


def _profile(
    spec: PartitionSpec, packed: PackedPartition, open_partition: OpenPartition, is_copied: bool
) -> StreamingProfile:
    """Times layers and disk under the partition's conditions."""
    return _run(
        spec,
        lambda inputs: profile_partition(
            open_partition,
            packed.block_sizes,
            packed.step_blocks,
            inputs=inputs,
            passes=PROFILE_PASSES,
            is_copied=is_copied,
        ),
    )


def _time_passes(spec: PartitionSpec, open_partition: OpenPartition, trial: RingTrial) -> list[float]:
    """Returns the seconds of some passes with a trial's plan; an empty list if weights do not come with it."""

    def time_passes(inputs: Sequence[Tensor]) -> list[float]:
        with closing(open_partition(trial.memory_plan)) as partition:
            return measure_passes(partition, inputs, TRIAL_PASSES)

    try:
        return _run(spec, time_passes)
    except (ConfigurationError, StreamError):
        return []


def _run(spec: PartitionSpec, measure: Callable[[Sequence[Tensor]], Found]) -> Found:
    """Runs a measurement with inputs of the partition, with its CPU threads or on a GPU stream of its own."""
    inputs = spec.zeros(spec.batch_size)

    @torch.inference_mode()
    def run() -> Found:
        with Stream(Device.of(inputs[0])).work("profile weights"):
            return measure(inputs)

    return run() if spec.num_threads is None else run_with_threads(spec.num_threads, run)
