"""The limits of a GPU, as Triton reports them."""

from __future__ import annotations

from functools import cache

import torch
from triton.compiler.compiler import max_shared_mem

from split_infer_ros.vision_ops.launch_limits import GpuLimits


@cache
def gpu_limits(device: torch.device) -> GpuLimits:
    """Returns the limits of a GPU. Triton refuses to launch a kernel that takes more shared memory.

    Args:
        device: with its index.
    """
    major, minor = torch.cuda.get_device_capability(device)
    return GpuLimits(10 * major + minor, max_shared_mem(device.index))
