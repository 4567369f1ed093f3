"""The GPU that tests use, and what it does not allow."""

from __future__ import annotations

import pytest
import torch

from split_infer_ros.buffers import cuda
from split_infer_ros.buffers.policy import Policy, legal

GPU = torch.device("cuda", 0)


def need(policy: Policy, shared: bool = False) -> None:
    """Skip where this GPU has no such memory."""
    if policy not in legal(cuda.device_attributes(0), shared):
        pytest.skip(f"this GPU does not allow {policy.value}")
