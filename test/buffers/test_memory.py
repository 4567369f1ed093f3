"""Each kind of memory, on a simulated GPU."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from simulated_gpu import GPU, CudaError, Gpu, simulated

from split_infer_ros.buffers import memory_allocation
from split_infer_ros.buffers.cuda import device_address, device_attributes
from split_infer_ros.buffers.host_arrays import FLOAT16, FLOAT32, as_tensor
from split_infer_ros.buffers.layout import Layout, TensorSpec, strides_of
from split_infer_ros.buffers.managed_bytes import MANAGED_BYTES, ManagedBytes
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.memory_allocation import adopt, allocate
from split_infer_ros.buffers.policy import POLICIES, Policy
from split_infer_ros.buffers.pool import HOST, SlotPool
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime import cuda
from split_infer_ros.runtime.streams import Stream

LAYOUT = Layout([TensorSpec("x", (3, 2, 2), FLOAT32), TensorSpec("y", (5,), FLOAT16)], 4)


@pytest.fixture
def own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Managed memory that other tests left does not count."""
    monkeypatch.setattr("split_infer_ros.buffers.cuda.MANAGED_BYTES", ManagedBytes())


def shared(gpu: Gpu) -> list[str]:
    """Returns the memory that both sides see."""
    return [region.name for region in gpu.memory.regions() if region.is_shared]


@pytest.mark.parametrize("policy", POLICIES)
def test_memory_is_freed_once_with_its_last_view(gpu: Gpu, policy: Policy) -> None:
    made = allocate(policy, 1000, GPU)
    view = made.device[10:20]
    made.host.fill_(3)
    if not made.needs_copy:
        assert made.bytes == 1000
        assert view.tolist() == 10 * [3]
    else:
        assert made.bytes == 2000
        assert made.device.data_ptr() != made.host.data_ptr()
    host = made.host[5:]
    del made, view
    gc.collect()
    (left,) = shared(gpu)
    assert left.startswith("1,000 bytes")
    assert host.eq(3).all()
    del host


def test_another_stream_may_use_memory_of_the_device_at_once(gpu: Gpu) -> None:
    """torch gives out what the first stream still writes to."""
    nbytes, first, second = 4096, Stream(GPU), Stream(GPU)
    with first.work("write"):
        for _ in range(8):
            left = torch.ones(nbytes, dtype=torch.uint8, device=GPU)
        del left
        made = allocate(Policy.DEVICE, nbytes, GPU)
    made.host.fill_(3)
    second.copy(made.device, made.host)
    assert made.device.eq(3).all()


@pytest.mark.parametrize("policy", [*POLICIES, Policy.HOST])
def test_on_a_cpu_every_policy_is_plain_memory(policy: Policy) -> None:
    made = allocate(policy, 100, torch.device("cpu"))
    assert (made.policy, made.bytes, made.needs_copy) == (Policy.HOST, 100, False)
    assert isinstance(made.host, np.ndarray)
    assert isinstance(made.device, np.ndarray)
    assert made.host.ctypes.data == made.device.ctypes.data
    adopted = adopt(policy, memoryview(made.host), torch.device("cpu"))
    assert adopted.policy is Policy.HOST
    assert np.shares_memory(adopted.host, made.host)
    adopted.release()


@pytest.mark.usefixtures("own_count")
def test_untouched_managed_memory_counts() -> None:
    """CUDA would grant it: the GPU's free memory shrinks only once pages are touched."""
    with simulated(Gpu(total=100_000)) as gpu:
        first = allocate(Policy.MANAGED, 40_000, GPU)
        assert gpu.free_bytes == gpu.total
        second = allocate(Policy.MANAGED, 40_000, GPU)
        with pytest.raises(
            cuda.OutOfMemory, match="beside the 80,000 that this process has, do not fit into the 100,000"
        ):
            allocate(Policy.MANAGED, 40_000, GPU)
        assert gpu.calls.count("cudaMallocManaged") == 2
        del first
        gc.collect()
        third = allocate(Policy.MANAGED, 40_000, GPU)
        del second, third
        gc.collect()


def test_managed_memory_counts_once_where_pages_come_at_once() -> None:
    with simulated(Gpu(total=100_000, absent=["cudaDevAttrConcurrentManagedAccess"])) as gpu:
        kept = [allocate(Policy.MANAGED, 30_000, GPU) for _ in range(3)]
        assert gpu.free_bytes == 10_000
        with pytest.raises(cuda.OutOfMemory, match="30,000 bytes of managed memory do not fit into the 10,000"):
            allocate(Policy.MANAGED, 30_000, GPU)
        del kept
        gc.collect()


@pytest.mark.parametrize("refused", ["cudaMallocManaged", "cudaMemGetInfo"])
def test_managed_memory_that_was_refused_does_not_count(gpu: Gpu, refused: str) -> None:
    before = MANAGED_BYTES.total
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "call", _failing(refused, cuda.call))
        with pytest.raises(cuda.OutOfMemory):
            allocate(Policy.MANAGED, 1000, GPU)
    assert MANAGED_BYTES.total == before


def _failing(refused: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``cuda.call`` that raises for one name."""

    def failing(name: str, *arguments: Any) -> Any:
        if name == refused:
            raise cuda.OutOfMemory(f"{name} failed.")
        return call(name, *arguments)

    return failing


def test_exclusive_managed_memory_belongs_to_one_side(gpu: Gpu) -> None:
    def gives() -> int:
        return gpu.calls.count("cudaStreamAttachMemAsync")

    both = allocate(Policy.MANAGED, 100, GPU)
    both.give_to_device()
    both.give_to_host()
    assert gives() == 0
    device_attributes.cache_clear()
    gpu.absent.add("cudaDevAttrConcurrentManagedAccess")
    exclusive, stream = allocate(Policy.MANAGED, 100, GPU), Stream(GPU)
    with stream.work("gives"):
        exclusive.give_to_device()
        with pytest.raises(CudaError, match=r"The CPU touches .* while stream .* may be at work"):
            exclusive.host.fill_(1)
        exclusive.give_to_host()
    torch.cuda.synchronize()
    exclusive.host.fill_(1)
    with pytest.raises(CudaError, match="which is attached to host"):
        exclusive.device.fill_(1)
    assert gives() == 2
    for policy in (Policy.PINNED, Policy.DEVICE):
        allocate(policy, 100, GPU).give_to_device()
    assert gives() == 2
    gpu.faults.clear()


@pytest.mark.parametrize("policy", POLICIES)
def test_an_allocation_beyond_the_gpus_memory_is_refused(gpu: Gpu, policy: Policy) -> None:
    gpu.total = gpu.page_lockable = 1 << 20
    with pytest.raises(cuda.OutOfMemory):
        allocate(policy, (1 << 20) + 1, GPU)
    assert gpu.memory.regions() == []


@pytest.mark.parametrize("policy", POLICIES)
def test_adopted_memory_is_page_locked_until_released(gpu: Gpu, policy: Policy) -> None:
    array = np.zeros(100, np.uint8)
    plain = memoryview(array)
    adopted = adopt(policy, plain, GPU)
    assert isinstance(adopted.host, torch.Tensor)
    assert (adopted.host.data_ptr(), adopted.host.nbytes) == (array.ctypes.data, 100)
    assert len(shared(gpu)) == 1, "page-locked, or pageable and reached by the GPU as it is"
    assert gpu.calls.count("cudaHostRegister") == (policy is not Policy.MANAGED)
    adopted.release()
    assert gpu.page_locked_bytes == 0
    adopted.release()
    again = adopt(policy, plain, GPU)
    del again  # forgotten


@pytest.mark.parametrize("absent", [[], ["cudaDevAttrConcurrentManagedAccess"]])
def test_switchable_memory_serves_each_batch_by_its_policy(gpu: Gpu, absent: list[str]) -> None:
    """Where CPU and GPU must not touch managed memory at once, the simulation reports who does."""
    gpu.absent.update(absent)
    device_attributes.cache_clear()
    base = SlotPool.allocate(LAYOUT, 1, Place(Policy.DEVICE, GPU, switchable=True))
    assert base.bytes == 2 * LAYOUT.slot_bytes, "as much as device memory takes alone"
    assert gpu.allocator.reserved == 0
    pools = {policy: base.with_policy(policy) for policy in POLICIES}
    work, copies = Stream(GPU), Stream(GPU)
    for turn, policy in enumerate((Policy.DEVICE, Policy.MANAGED, Policy.DEVICE, Policy.PINNED, Policy.MANAGED)):
        pool = pools[policy]
        assert pool is not None
        assert pool.slots.policy is policy
        lease = base.acquire()
        assert lease is not None
        assert pool.acquire() is None, "the slots are the same"
        expected = torch.full((3, 3, 2, 2), float(turn)), torch.full((3, 5), float(turn)).half()
        features = [feature.to(GPU) for feature in expected]
        with work.work("backbone"):
            pool.slots.write(lease.slot, features)
        if pool.slots.needs_copy:
            copies.wait_for(work.fence())
            with copies.work("copy"):
                pool.slots.fetch(lease.slot, 3)
            copies.fence().wait()
        work.fence().wait()
        for found, feature in zip(pool.views(lease, 3), expected, strict=True):
            assert torch.equal(found, feature)
        del found
        assert pool.revoke(lease)
    base.close()
    pools.clear()


def test_memory_of_one_policy_serves_no_other(gpu: Gpu) -> None:
    pool = SlotPool.allocate(LAYOUT, 1, Place(Policy.DEVICE, GPU))
    assert pool.with_policy(Policy.MANAGED) is None
    same = pool.with_policy(Policy.DEVICE)
    assert same is not None
    assert same.leases is pool.leases
    pool.close()


def test_an_error_names_the_cuda_call(gpu: Gpu) -> None:
    gpu.runtime.refuse["cudaMemGetInfo"] = "cudaErrorInvalidValue"
    with pytest.raises(ConfigurationError, match=r"cudaMemGetInfo failed: cudaErrorInvalidValue\."):
        allocate(Policy.MANAGED, 10, GPU)


def test_a_missing_binding_is_reported_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(cuda.importlib, "import_module", missing)  # type: ignore[attr-defined]
    cuda.binding.cache_clear()
    with pytest.raises(ConfigurationError, match="pip install cuda-bindings"):
        device_address(1)
    cuda.binding.cache_clear()


# Rings


@pytest.mark.parametrize("make", [SlotPool, SharedSlotPool])
@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.PINNED])
def test_the_cpu_sees_what_the_device_wrote(
    gpu: Gpu, policy: Policy, make: type[SlotPool] | type[SharedSlotPool]
) -> None:
    pool = make.allocate(LAYOUT, 2, Place(policy, GPU))
    assert pool.memory == {SlotPool: "", SharedSlotPool: "shared "}[make] + policy.value
    assert pool.bytes == 2 * LAYOUT.slot_bytes * (2 if policy is Policy.DEVICE else 1)
    lease = pool.acquire()
    assert lease is not None
    features = torch.randn(3, 3, 2, 2), torch.randn(3, 5).half()
    pool.slots.write(lease.slot, [feature.to(GPU) for feature in features])
    assert pool.slots.needs_copy == (policy is Policy.DEVICE)
    if pool.slots.needs_copy:
        pool.slots.fetch(lease.slot, 3)
    torch.cuda.synchronize()
    for found, expected in zip(pool.views(lease, 3), features, strict=True):
        assert torch.equal(found, expected)
    del found
    pool.close()


@pytest.mark.parametrize("place", [HOST, Place(Policy.DEVICE, GPU), Place(Policy.PINNED, GPU)])
def test_a_slot_keeps_the_strides_of_the_written_tensors(gpu: Gpu, place: Place) -> None:
    """Also equivalent strides: for a 1x1 map, two of these mean the same layout, but oneDNN takes other kernels."""
    pool = SlotPool.allocate(Layout([TensorSpec("x", (8, 1, 1), FLOAT32)], 4), 1, place)
    lease = pool.acquire()
    assert lease is not None
    for count, strides in ((2, (8, 1, 1, 1)), (4, (8, 1, 8, 8)), (2, (8, 1, 8, 8)), (2, (1, 2, 2, 2))):
        values = torch.randn(8 * count)
        feature = values.as_strided((count, 8, 1, 1), strides)
        pool.slots.write(lease.slot, [values.to(place.device).as_strided((count, 8, 1, 1), strides)])
        if pool.slots.needs_copy:
            pool.slots.fetch(lease.slot, count)
        torch.cuda.synchronize()
        (view,) = pool.views(lease, count)
        assert torch.equal(as_tensor(view), feature)
        assert strides_of(view) == strides
        assert pool.views(lease, count)[0] is view  # no view is made twice
    pool.close()


@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.MANAGED])
def test_without_room_pinned_memory_is_used_and_noted(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    real = memory_allocation.allocate

    def full(asked: Policy, nbytes: int, device: torch.device) -> Memory:
        if asked is not Policy.PINNED:
            raise cuda.OutOfMemory("CUDA out of memory.")
        return real(asked, nbytes, device)

    monkeypatch.setattr(memory_allocation, "allocate", full)
    slots = SlotMemory.allocate(LAYOUT, 2, Place(policy, GPU))
    assert slots.policy is Policy.PINNED
    assert slots.note == (
        f"There is no room for the features by memory_policy {policy.value} (CUDA out of memory.): "
        "pinned is used instead."
    )


@pytest.mark.parametrize("make", [SlotPool, SharedSlotPool])
@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.PINNED])
def test_a_pool_without_any_room_is_refused_and_leaks_nothing(
    gpu: Gpu, policy: Policy, make: type[SlotPool] | type[SharedSlotPool]
) -> None:
    gpu.page_lockable = LAYOUT.slot_bytes  # for one slot
    sizes = r"\(.* bytes were asked for, and .* free .*cuda\w+ failed.*\)"
    sentence = rf"A pool of 3 slots of [0-9,]+ bytes cannot be allocated {sizes}: take a smaller batch_size"
    with pytest.raises(ConfigurationError, match=sentence):
        make.allocate(LAYOUT, 3, Place(policy, GPU))
    gc.collect()
    assert gpu.page_locked_bytes == 0


def test_a_closed_pool_unlocks_memory_that_others_still_hold(gpu: Gpu) -> None:
    held: list[Memory] = []

    def make(slot: int, place: Place) -> Memory:
        held.append(adopt(place.policy, memoryview(mmap.mmap(-1, LAYOUT.slot_bytes)), GPU))
        return held[-1]

    slots = SlotMemory.allocate(LAYOUT, 2, Place(Policy.PINNED, GPU), make)
    assert gpu.page_locked_bytes == 2 * LAYOUT.slot_bytes
    slots.close()
    assert gpu.page_locked_bytes == 0
