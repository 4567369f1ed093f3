"""The simulated GPU's memory: who may touch it, when it is reused, and which errors are reported."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch
from simulated_gpu import CudaError, Gpu, simulated

from split_infer_ros.buffers.memory_allocation import adopt, allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.streams import Stream

GPU = torch.device("cuda", 0)


def test_tensors_of_both_sides_cannot_be_mixed(gpu: Gpu) -> None:
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu"):
        torch.ones(2, device=GPU) + torch.ones(2)


def test_the_host_cannot_read_device_memory(gpu: Gpu) -> None:
    with pytest.raises((TypeError, RuntimeError)):
        torch.ones(2, device=GPU).numpy()


def test_a_freed_block_is_poisoned_and_reused_at_once(gpu: Gpu) -> None:
    first = torch.zeros(100, device=GPU)
    address = first.data_ptr()
    del first
    second = torch.empty(100, device=GPU)
    assert second.data_ptr() == address
    assert second.isnan().all()


def test_freeing_memory_that_a_stream_uses_is_reported(gpu: Gpu) -> None:
    other, values = Stream(GPU), torch.zeros(100, device=GPU)
    with other.work("reads"):
        doubled = values * 2
    del values
    torch.empty(100, device=GPU)
    (race,) = gpu.races
    gpu.races.clear()
    assert "where that memory is handed out again" in str(race)
    assert doubled.shape == (100,)


def test_record_stream_keeps_memory_until_the_stream_is_done(gpu: Gpu) -> None:
    other, values = torch.cuda.Stream(), torch.zeros(100, device=GPU)
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        doubled = values * 2
    values.record_stream(other)
    del values
    torch.full((100,), 5.0, device=GPU)
    other.synchronize()
    assert doubled.sum().item() == 0


def test_the_cache_is_freed_before_memory_is_refused() -> None:
    with simulated(Gpu(total=1 << 20)):
        kept = torch.empty(700_000, dtype=torch.uint8, device=GPU)
        with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate 700416 bytes"):
            torch.empty(700_000, dtype=torch.uint8, device=GPU)
        del kept
        assert torch.cuda.memory_reserved() > 700_000
        torch.empty(900_000, dtype=torch.uint8, device=GPU)
        assert torch.cuda.mem_get_info()[1] == 1 << 20


def a_page() -> memoryview:
    """Returns memory of the host as ``adopt`` takes it."""
    return memoryview(mmap.mmap(-1, 4096))


def test_page_locking_can_be_refused(gpu: Gpu) -> None:
    gpu.runtime.refuse["cudaHostRegister"] = "cudaErrorNotSupported"
    with pytest.raises(ConfigurationError, match="cudaHostRegister failed: cudaErrorNotSupported"):
        adopt(Policy.PINNED, a_page(), GPU)
    gpu.page_lockable = 1000
    with pytest.raises(OutOfMemory):
        allocate(Policy.PINNED, 4096, GPU)


def test_memory_is_not_page_locked_twice(gpu: Gpu) -> None:
    plain = a_page()
    memory = adopt(Policy.PINNED, plain, GPU)
    with pytest.raises(ConfigurationError):
        adopt(Policy.PINNED, plain, GPU)
    memory.release()
    with pytest.raises(CudaError, match="no such memory"):
        memory.device.fill_(1)
    gpu.faults.clear()


@pytest.mark.parametrize("given", [True, False])
def test_managed_memory_belongs_to_one_side_at_a_time(given: bool) -> None:
    with simulated(Gpu(absent=["cudaDevAttrConcurrentManagedAccess"])) as gpu:
        memory = allocate(Policy.MANAGED, 64, GPU)
        memory.host.fill_(1)
        if given:
            stream = Stream(GPU)
            with stream.work("adds"):
                memory.give_to_device()
                memory.device.add_(1)
                memory.give_to_host()
            stream.fence().wait()
            assert memory.host.tolist() == [2] * 64
        else:
            with pytest.raises(CudaError, match="attached to host"):
                memory.device.add_(1)
            gpu.faults.clear()


def test_pageable_memory_needs_the_gpus_attribute() -> None:
    with simulated(Gpu(absent=["cudaDevAttrPageableMemoryAccess"])) as gpu:
        with pytest.raises(OutOfMemory, match="memory that the GPU cannot reach"):
            adopt(Policy.MANAGED, a_page(), GPU)
        gpu.faults.clear()


def test_memory_is_not_given_to_the_default_stream_alone() -> None:
    """CUDA refuses that: the default stream stands for all streams."""
    with simulated(Gpu(absent=["cudaDevAttrConcurrentManagedAccess"])):
        memory = allocate(Policy.MANAGED, 64, GPU)
        with pytest.raises(ConfigurationError, match="cudaStreamAttachMemAsync failed: cudaErrorInvalidValue"):
            memory.give_to_device()
        memory.give_to_host()


def test_pages_of_managed_memory_go_to_who_touches_them(gpu: Gpu) -> None:
    memory, free = allocate(Policy.MANAGED, 4096, GPU), gpu.free_bytes
    memory.device.fill_(1)
    assert gpu.free_bytes == free - 4096
    torch.cuda.current_stream().synchronize()
    assert memory.host.eq(1).all()
    assert gpu.free_bytes == free


def test_registered_memory_has_another_address_on_the_device(gpu: Gpu) -> None:
    plain = a_page()
    adopted = adopt(Policy.PINNED, plain, GPU)
    with pytest.raises(CudaError, match="an address of the host"):
        torch.as_tensor(AtAddress(np.frombuffer(plain, np.uint8).ctypes.data), device=GPU)
    gpu.faults.clear()
    adopted.device.fill_(3)
    torch.cuda.current_stream().synchronize()
    assert bytes(plain) == 4096 * b"\3"
    adopted.release()


class AtAddress:
    """Memory at an address, as torch takes it."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {"shape": (4096,), "typestr": "|u1", "data": (address, False), "version": 3}


def test_common_memory_is_kept_while_a_thread_uses_a_pool(gpu: Gpu) -> None:
    pool = torch.cuda.MemPool()
    torch.empty(1000, device=GPU)
    with torch.cuda.use_mem_pool(pool):
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() > 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
