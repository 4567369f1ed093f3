"""Memory that CPU and GPU share, as a GPU has it: the very same bytes, no copy where none is promised."""

from __future__ import annotations

import gc

import pytest
import torch
from real_gpu import GPU, free_bytes, need, need_profiler, work_of_the_gpu

from split_infer_ros.buffers.cuda import device_attributes
from split_infer_ros.buffers.host_arrays import BYTE, FLOAT16, FLOAT32
from split_infer_ros.buffers.layout import Layout, TensorSpec
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.runtime import cuda
from split_infer_ros.runtime.streams import Stream

TENSORS = TensorSpec("x", (64, 7, 7), FLOAT32), TensorSpec("y", (5,), FLOAT16)
LAYOUT = Layout(TENSORS, 8)
MB = 1 << 20


@pytest.mark.parametrize("policy", POLICIES)
def test_both_sides_see_the_same_bytes(policy: Policy) -> None:
    need(policy)
    memory, stream = allocate(policy, 4 * MB, GPU), Stream(GPU)  # a GPU may refuse to own memory on the default stream
    assert memory.host.device.type == "cpu"
    assert memory.device.device == GPU
    if policy is Policy.MANAGED:
        assert memory.host.data_ptr() == memory.device.data_ptr()
    with stream.work("fill"):
        memory.give_to_device()
        memory.device.fill_(7)
        if memory.needs_copy:
            memory.host.copy_(memory.device, non_blocking=True)
        memory.give_to_host()
    stream.fence().wait()
    assert memory.host.eq(7).all()
    if not memory.needs_copy:
        memory.host.fill_(9)
        with stream.work("sum"):
            memory.give_to_device()
            assert int(memory.device.sum(dtype=torch.int64)) == 9 * 4 * MB
            memory.give_to_host()
        stream.fence().wait()


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_dropped_is_given_back(policy: Policy) -> None:
    need(policy)
    free, stream = [], Stream(GPU)
    for _ in range(4):
        memory = allocate(policy, 512 * MB, GPU)
        with stream.work("touch"):
            memory.give_to_device()
            memory.device[:1].fill_(1)
            memory.give_to_host()
        stream.fence().wait()
        del memory
        gc.collect()
        free.append(free_bytes())
    assert free[-1] > free[0] - 256 * MB, free  # the first round takes what the process keeps


@pytest.mark.parametrize("make", [SlotPool, SharedSlotPool])
@pytest.mark.parametrize("policy", POLICIES)
def test_features_are_copied_only_where_the_policy_has_two_buffers(
    policy: Policy, make: type[SlotPool] | type[SharedSlotPool]
) -> None:
    need(policy, make is SharedSlotPool)
    need_profiler()
    pool, stream = make.allocate(LAYOUT, 2, Place(policy, GPU)), Stream(GPU)
    assert pool.slots.policy is policy
    features = torch.randn(8, 64, 7, 7, device=GPU), torch.randn(8, 5, device=GPU).half()

    def hand_over(slot: int, part: list[torch.Tensor]) -> None:
        with stream.work("hand over"):
            pool.slots.write(slot, part)
            if pool.slots.needs_copy:
                pool.slots.fetch(slot, len(part[0]))

    for batch in (8, 3):
        lease = pool.acquire()
        assert lease is not None
        part = [feature[:batch] for feature in features]
        hand_over(lease.slot, part)  # the first time, kernels are loaded
        torch.cuda.synchronize()
        moves = work_of_the_gpu(lambda: hand_over(lease.slot, part))
        # Each tensor is written once, by a kernel or by a copy, and only with two buffers it is fetched besides. Where
        # both sides share the bytes, CUDA may call the write a copy to the host: it goes by who allocated them.
        assert len(moves) == (4 if policy is Policy.DEVICE else 2), moves
        if policy is Policy.DEVICE:
            assert sum("DtoH" in name for name in moves) == 2, moves
        for found, expected in zip(pool.views(lease, batch), part, strict=True):
            assert torch.equal(found, expected.cpu())
        del found
        assert pool.revoke(lease)
    pool.close()


def test_more_managed_memory_than_is_free_is_refused_before_it_hangs_the_gpu() -> None:
    need(Policy.MANAGED)
    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(cuda.OutOfMemory, match="do not fit"):
        allocate(Policy.MANAGED, free + MB, GPU)


def test_untouched_managed_memory_counts() -> None:
    need(Policy.MANAGED)
    if not device_attributes(0).concurrent_managed_access:
        pytest.skip("this GPU takes managed memory from its free memory at once")
    kept = allocate(Policy.MANAGED, 1024 * MB, GPU)
    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(cuda.OutOfMemory, match="that this process has, do not fit"):
        allocate(Policy.MANAGED, free - 512 * MB, GPU)
    del kept


def test_where_the_gpu_is_full_the_ring_is_pinned_and_says_so() -> None:
    if device_attributes(0).integrated:
        pytest.skip("this GPU is full when its host is, and the system would end processes")
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    taken = torch.empty(free - 128 * MB, dtype=torch.uint8, device=GPU)
    pool = SlotPool.allocate(Layout([TensorSpec("x", (256 * MB,), BYTE)], 1), 2, Place(Policy.DEVICE, GPU))
    assert pool.memory == "pinned"
    assert "pinned is used instead" in pool.slots.note
    del taken
    torch.cuda.empty_cache()
