"""Every message about a shortage of memory has two sizes: what was asked for, and what is free."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from split_infer_ros.buffers import cuda, segment
from split_infer_ros.buffers.memory_allocation import allocate
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.segment import Segment
from split_infer_ros.errors import ConfigurationError
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.shortage import host_bytes_free, shortage, summarize_error
from split_infer_ros.weight_streaming import ring_memory

CPU = torch.device("cpu")
HUGE = 2**60
OF_GPU = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.72 GiB of which 512.00 MiB is "
    "free. Including non-PyTorch memory, this process has 139.20 GiB memory in use."
)


def test_torchs_sizes_are_converted_to_bytes() -> None:
    said = summarize_error(torch.OutOfMemoryError(OF_GPU))
    assert said == "2,684,354,560 bytes were asked for, and the GPU has 536,870,912 free"


def test_other_errors_keep_their_first_line() -> None:
    assert summarize_error(RuntimeError("another error\nand its stack")) == "another error"


def test_the_hosts_own_allocator_is_understood() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(HUGE, dtype=torch.uint8)
    assert summarize_error(refused.value).startswith(f"{HUGE:,} bytes were asked for, and the host has ")


def test_a_shortage_of_the_host_tells_both_sizes() -> None:
    with pytest.raises(OutOfMemory, match=f"^{HUGE:,} bytes were asked for, and the host has [0-9,]+ free"):
        allocate(Policy.HOST, HUGE, CPU)


@pytest.mark.parametrize("policy", [Policy.PINNED, Policy.MANAGED, Policy.DEVICE])
def test_a_shortage_of_a_gpu_tells_both_sizes(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OutOfMemory("cudaHostAlloc failed: out of memory.")

    monkeypatch.setattr(cuda, "allocate_mapped", refuse)
    monkeypatch.setattr(cuda, "allocate_managed", refuse)
    monkeypatch.setattr(cuda, "device_attributes", lambda index: SimpleNamespace(concurrent_managed_access=True))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7_000, 9_000))
    with pytest.raises(OutOfMemory) as refused:
        allocate(policy, 5_000, torch.device("cuda", 0))
    said = str(refused.value)
    assert re.match("5,000 bytes were asked for, and the host has [0-9,]+ free", said)
    assert ("cuda:0 has 7,000" in said) == (policy is not Policy.PINNED)
    assert said.endswith("(cudaHostAlloc failed: out of memory)")


def test_a_full_folder_tells_both_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(segment.os, "posix_fallocate", refuse)
    size = segment.segment_bytes(2, 5_000)
    with pytest.raises(ConfigurationError, match=f"{size:,} bytes were asked for, and {folder} has [0-9,]+ free"):
        Segment.create(2, 5_000, 1)


def test_a_weight_ring_without_room_tells_both_sizes() -> None:
    with pytest.raises(OutOfMemory, match=f"{HUGE:,} bytes were asked for, and the host has [0-9,]+ free"):
        ring_memory.page_aligned(HUGE)


def test_free_host_memory_is_less_than_all_of_it() -> None:
    assert 0 < host_bytes_free() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert shortage(1, 2, "it") == "1 bytes were asked for, and it has 2 free"
