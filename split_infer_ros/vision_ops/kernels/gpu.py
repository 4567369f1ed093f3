"""What Triton knows of a GPU."""

from __future__ import annotations

from functools import cache

import torch
from triton.compiler.compiler import max_shared_mem

from split_infer_ros.vision_ops.launchable import Gpu


@cache
def gpu_of(device: torch.device) -> Gpu:
    """The limits of a GPU; Triton refuses to launch what takes more shared memory.

    Args:
        device: with its index.
    """
    major, minor = torch.cuda.get_device_capability(device)
    return Gpu(10 * major + minor, max_shared_mem(device.index))
