"""The GPU that tests use, and functions that skip a test if this GPU lacks something."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile, supported_activities

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.policy import Policy, legal_policies
from split_infer_ros.runtime.captures import empty_cache, synchronize_device

GPU = torch.device("cuda", 0)
SANITIZED = "TORCH_CUDA_SANITIZER" in os.environ  # PyTorch's stream sanitizer checks this process


def need(policy: Policy, shared: bool = False) -> None:
    """Skips the test if this GPU does not allow memory of a policy. Another process maps ``shared`` memory too."""
    if policy not in legal_policies(cuda.device_attributes(0), shared):
        pytest.skip(f"this GPU does not allow {policy.value}")


def free_bytes() -> int:
    """Returns the free bytes of the GPU's memory, after torch has given back unused memory.

    Another thread may be recording a graph meanwhile.
    """
    synchronize_device(GPU)
    empty_cache()
    return torch.cuda.mem_get_info(GPU)[0]


def work_of_the_gpu(run: Callable[[], object]) -> list[str]:
    """Returns the names of the kernels and copies that ``run`` gives to the GPU."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    events = profiler.events() or []
    return [event.name for event in events if event.device_type == DeviceType.CUDA]  # a new object each: `is` fails


def need_profiler() -> None:
    """Skips the test if PyTorch's profiler cannot trace a GPU. Fails it if the profiler misses a kernel that ran."""
    if ProfilerActivity.CUDA not in supported_activities():
        pytest.skip("PyTorch's profiler cannot trace this GPU")
    assert work_of_the_gpu(lambda: torch.ones(8, device=GPU)), "PyTorch's profiler lists no kernel, and one ran"
