"""What tasks of slots and batches do with memory."""

from __future__ import annotations

import pytest
from assumed_boards import TX2

from split_infer_ros.buffers.policy import Policy
from split_infer_ros.memory_cost.constants import MachineConstants
from split_infer_ros.memory_cost.overhead import overhead
from split_infer_ros.memory_cost.task import Kernel, Task, batch_task, feature_task
from split_infer_ros.memory_cost.traffic import KernelTraffic, kernels_outside, kernels_within

# A byte is copied in 1 ms and mapped in 1 ms under M, in 2 under H; a launch under M costs 1 ms besides.
UNIT = MachineConstants(0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0)
TRAFFIC = [KernelTraffic(10, 20, weight_bytes=5, fresh_bytes=10), KernelTraffic(20, 7, weight_bytes=3, fresh_bytes=20)]


def batch(kernels: tuple[Kernel, ...], tensors: int = 1) -> Task:
    return batch_task(
        "batch", image_bytes=100, feature_bytes=7, kernels=kernels, execution_ms=5.0, feature_tensors=tensors
    )


def test_batch_has_images_and_features() -> None:
    found = batch(kernels_outside(TRAFFIC), tensors=3)
    assert (found.to_device_bytes, found.to_host_bytes, found.execution_ms) == (100, 7, 5.0)
    assert found.copies == 4
    assert found.num_kernels == 1 + 2, "pre-processing is one kernel"
    assert overhead(found, Policy.DEVICE, UNIT).total_ms == 107


def test_only_what_is_mapped_before_the_kernels_is_idle_time() -> None:
    """The images are mapped first. The features are mapped for the last kernel, when a co-run task has ended."""
    found = overhead(batch(kernels_outside(TRAFFIC)), Policy.MANAGED, UNIT)
    assert found.idle_ms == 100
    assert found.busy_ms == 7 + 2, "two launches find a dirty cache"


def test_kernels_of_a_model_outside_of_the_policy_touch_the_slot_only() -> None:
    assert kernels_outside(TRAFFIC) == (Kernel(0, launches=2),)
    assert kernels_outside([]) == (Kernel(0),), "a copy into the slot"
    accessed = [(kernel.accessed_bytes, kernel.launches) for kernel in batch(kernels_outside(TRAFFIC)).kernels]
    assert accessed == [(100, 1), (0, 1), (7, 1)]


def test_kernels_of_a_model_within_the_policy_read_through_the_cache() -> None:
    """Two images: each kernel finds in the cache what the one before it wrote, as far as 30 bytes hold it."""
    first, second = kernels_within(TRAFFIC, 2, cache_bytes=30)
    assert first == Kernel(2 * (10 + 20) + 5, written_bytes=40, cached_bytes=20)
    assert second == Kernel(2 * (20 + 7) + 3, written_bytes=14, cached_bytes=30)
    assert kernels_within([], 2, cache_bytes=30) == (Kernel(0),)
    whole = batch((first, second))
    assert whole.kernels[-1] == Kernel(57, written_bytes=14, mapped_bytes=7, overlapped=False, cached_bytes=30)
    assert overhead(whole, Policy.PINNED, UNIT).busy_ms == pytest.approx(20 + 30), "T_c: the penalty is 1 ms a byte"


def test_each_kernel_of_a_board_flushes_its_cache() -> None:
    """On a TX2, flushing every kernel's results is what makes managed memory slow for a model of many kernels."""
    layers = [KernelTraffic(10**6, 10**6)] * 100
    many, one = (batch(kernels_within(traffic, 1, cache_bytes=0)) for traffic in (layers, layers[:1]))
    assert overhead(many, Policy.MANAGED, TX2).busy_ms == pytest.approx(
        overhead(one, Policy.MANAGED, TX2).busy_ms + 99 * TX2.gpu_flush_ms
    )


def test_slot_is_reached_by_the_last_kernel_only() -> None:
    found = feature_task(100, num_kernels=50, copies=2)
    assert (found.num_kernels, found.copies) == (50, 2)
    for policy in (Policy.DEVICE, Policy.MANAGED, Policy.PINNED):
        assert overhead(found, policy, UNIT) == overhead(feature_task(100), policy, UNIT), "Tr_ini is 0 here"
