"""Pools of managed and page-locked memory, from which torch takes tensors; the C functions run, on a simulated GPU."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from threading import Event, Thread

import pytest
import torch
from simulated_gpu import GPU, Gpu, simulated

from split_infer_ros.buffers import cuda, native_library, pool_allocators
from split_infer_ros.buffers.managed_bytes import ManagedBytes
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.memory_pool import MemoryPool
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.pool_allocators import POOLED
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.captures import CaptureError, capture
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.streams import Stream

LONG_S = 60.0
COUNT = ManagedBytes()  # of this file alone; C code keeps its address
KIND = {Policy.MANAGED: "managed", Policy.PINNED: "mapped"}  # the simulation's names of memory

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, native_library.COMPILERS)), reason="needs a C compiler, which builds the allocators"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def kind_of(gpu: Gpu, tensor: torch.Tensor) -> str:
    region = gpu.memory.find(tensor.data_ptr())
    assert region is not None
    return region.kind


@pytest.mark.parametrize("policy", sorted(POOLED, key=str))
def test_tensors_of_the_block_lie_in_the_pool(gpu: Gpu, policy: Policy) -> None:
    pool = MemoryPool(policy, GPU)
    with pool.allocating():
        inside = torch.ones(1000, device=GPU)
        with pool.allocating():  # an inner block of the same thread
            result = 2 * inside
    outside = torch.ones(1000, device=GPU)
    assert [kind_of(gpu, tensor) for tensor in (inside, result, outside)] == [KIND[policy], KIND[policy], "device"]
    assert result.cpu().eq(2).all()
    assert pool.bytes == 2 * 4096  # two blocks of 4,000 bytes, each rounded to 512
    del inside, result, pool
    gc.collect()
    torch.cuda.empty_cache()
    assert [region.kind for region in gpu.memory.regions()] == ["device"]


@pytest.mark.parametrize("policy", [Policy.DEVICE, Policy.HOST])
def test_other_policies_are_torchs_common_memory(gpu: Gpu, policy: Policy) -> None:
    pool = MemoryPool(policy, GPU)
    with pool.allocating():
        inside = torch.ones(1000, device=GPU)
    assert kind_of(gpu, inside) == "device"
    assert pool.bytes == 0


def test_memory_of_tensors_is_used_again(gpu: Gpu) -> None:
    pool = MemoryPool(Policy.MANAGED, GPU)
    for _ in range(5):
        with pool.allocating():
            torch.ones(1000, device=GPU).sum()
    assert gpu.calls.count("cudaMallocManaged") == 2, "one for the values, one for the sum"


def test_other_threads_keep_their_memory(gpu: Gpu) -> None:
    pool, made, entered = MemoryPool(Policy.MANAGED, GPU), Event(), Event()
    kinds = []

    def make() -> None:
        assert entered.wait(LONG_S)
        kinds.append(kind_of(gpu, torch.ones(1, device=GPU)))
        made.set()

    thread = Thread(target=make)
    thread.start()
    with pool.allocating():
        entered.set()
        assert made.wait(LONG_S)
    thread.join()
    assert kinds == ["device"]


def test_threads_take_turns_in_a_pool(gpu: Gpu) -> None:
    """torch refuses the second one; the simulation does so too, and fails this test."""
    pool, entered = MemoryPool(Policy.MANAGED, GPU), Event()
    order = []

    def enter() -> None:
        assert entered.wait(LONG_S)
        with pool.allocating():
            order.append("second")

    thread = Thread(target=enter)
    thread.start()
    with pool.allocating():
        entered.set()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_pool_without_room_is_out_of_memory(gpu: Gpu) -> None:
    pool = MemoryPool(Policy.MANAGED, GPU)
    with pool.allocating(), pytest.raises(torch.OutOfMemoryError):
        torch.empty(gpu.total + 1, dtype=torch.uint8, device=GPU)
    assert "cudaMallocManaged" not in gpu.calls, "more managed memory than is free can hang a GPU"
    gpu.page_lockable = 100
    pinned = MemoryPool(Policy.PINNED, GPU)
    with pinned.allocating(), pytest.raises(torch.OutOfMemoryError):
        torch.empty(1000, device=GPU)
    torch.ones(1, device=GPU)  # the error is not left for the next call


def test_pools_and_single_allocations_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody touches the single allocation, so the GPU reports its bytes as free."""
    gc.collect()
    for module in (cuda, pool_allocators):
        monkeypatch.setattr(module, "MANAGED_BYTES", COUNT)
    with simulated(Gpu(total=1 << 20)) as gpu:
        pool = MemoryPool(Policy.MANAGED, GPU)
        gpu.total += COUNT.total  # what pools of earlier tests hold, whose memory torch keeps
        single = allocate(Policy.MANAGED, 400_000, GPU)
        with pool.allocating():
            values = torch.empty(400_000, dtype=torch.uint8, device=GPU)
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(400_000, dtype=torch.uint8, device=GPU)
        with pytest.raises(OutOfMemory, match="beside"):
            allocate(Policy.MANAGED, 400_000, GPU)
        assert gpu.free_bytes == gpu.total - 400_384, "that of the pool has its pages"
        del values, pool
        gc.collect()
        torch.cuda.empty_cache()
        again = allocate(Policy.MANAGED, 400_000, GPU)
        del single, again
        gc.collect()


def test_memory_that_a_pool_has_counts_once(gpu: Gpu) -> None:
    """Memory that was touched is not free any more. Were it counted besides, half of the GPU would stay unused."""
    gpu.total = 1_000_000
    pool = MemoryPool(Policy.MANAGED, GPU)
    with pool.allocating():
        kept = [torch.zeros(300_000, dtype=torch.uint8, device=GPU) for _ in range(3)]
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(300_000, dtype=torch.uint8, device=GPU)
    assert gpu.free_bytes < 100_000
    del kept, pool
    gc.collect()


def test_pages_that_a_pool_cannot_have_are_out_of_memory(gpu: Gpu) -> None:
    pool = MemoryPool(Policy.MANAGED, GPU)
    gpu.runtime.refuse["cudaMemset"] = "cudaErrorMemoryAllocation"
    with pool.allocating(), pytest.raises(torch.OutOfMemoryError):
        torch.empty(1000, device=GPU)
    assert gpu.memory.regions() == []


def test_pools_count_once_where_pages_come_at_once() -> None:
    with simulated(Gpu(total=1_000_000, absent=["cudaDevAttrConcurrentManagedAccess"])) as gpu:
        pool = MemoryPool(Policy.MANAGED, GPU)
        with pool.allocating():
            kept = [torch.empty(300_000, dtype=torch.uint8, device=GPU) for _ in range(3)]
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(300_000, dtype=torch.uint8, device=GPU)
        assert gpu.calls.count("cudaMallocManaged") == 3
        del kept, pool
        gc.collect()


@pytest.mark.parametrize("policy", sorted(POOLED, key=str))
def test_graph_lies_in_memory_of_the_policy(gpu: Gpu, policy: Policy) -> None:
    check_graph(gpu, policy)
    gc.collect()
    torch.cuda.empty_cache()
    assert not [region for region in gpu.memory.regions() if region.is_shared]


def check_graph(gpu: Gpu, policy: Policy) -> None:
    pool = MemoryPool(policy, GPU)
    with pool.allocating():
        values = torch.ones(1000, device=GPU)
    before = pool.bytes

    def run() -> torch.Tensor:
        with pool.allocating():  # changes nothing while the graph is recorded
            return (values + 1) * 2

    recorded = capture(run, Stream(GPU), pool.graph_pool())
    values.fill_(4)
    recorded.launch()
    assert recorded.results.cpu().eq(10).all()
    assert kind_of(gpu, recorded.results) == KIND[policy]
    assert recorded.bytes == 2 * 4096
    assert pool.bytes > before, "the warm-ups were not recorded"


def test_recording_that_fails_leaves_the_pool_usable(gpu: Gpu) -> None:
    pool = MemoryPool(Policy.MANAGED, GPU)
    values = torch.ones(1000, device=GPU)
    gpu.fail_captures = 1
    with pytest.raises(CaptureError):
        capture(lambda: values + 1, Stream(GPU), pool.graph_pool())
    graphs = pool.graph_pool()
    recorded = [capture(lambda: values + 1, Stream(GPU), graphs) for _ in range(2)]
    del graphs, recorded[0]
    gc.collect()
    recorded[0].launch()
    assert recorded[0].results.cpu().eq(2).all()


def test_pool_goes_once_no_thread_allocates_from_another(gpu: Gpu) -> None:
    """torch would end the process. The simulation notes it as a fault."""
    used, dropped = MemoryPool(Policy.MANAGED, GPU), MemoryPool(Policy.MANAGED, GPU)
    with dropped.allocating():
        values = torch.ones(1000, device=GPU)
    entered, leave = Event(), Event()

    def allocate_for_long() -> None:
        with used.allocating():
            entered.set()
            assert leave.wait(LONG_S)

    thread = Thread(target=allocate_for_long)
    thread.start()
    assert entered.wait(LONG_S)
    del values, dropped
    gc.collect()
    assert [region.kind for region in gpu.memory.regions()] == ["managed"], "it waits"
    leave.set()
    thread.join()
    torch.cuda.empty_cache()
    assert gpu.memory.regions() == []


def test_pool_that_goes_beside_a_recording_waits_for_its_end(gpu: Gpu) -> None:
    pools, values = [MemoryPool(Policy.PINNED, GPU)], torch.ones(1000, device=GPU)
    graphs = [pools[0].graph_pool()]

    def drop() -> None:
        pools.clear()
        graphs.clear()

    def run() -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            thread = Thread(target=drop)
            thread.start()
            thread.join()
        return values + 1

    recorded = capture(run, Stream(GPU))
    assert pools == graphs == []
    recorded.launch()
    assert recorded.results.cpu().eq(2).all()


def test_old_torch_is_reported(gpu: Gpu) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(torch._C, "_cuda_beginAllocateCurrentThreadToPool")
        with pytest.raises(ConfigurationError, match=r"no memory pools for single threads: take torch 2\.9 or later"):
            MemoryPool(Policy.MANAGED, GPU)
