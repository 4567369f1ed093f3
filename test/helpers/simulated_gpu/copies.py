"""Simulates copies between host and device: whether the host waits, and when its memory is read or written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simulated_gpu.tensors import GpuTensor

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu


def copy(gpu: Gpu, into: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Simulates ``into.copy_(source, non_blocking)``."""
    if isinstance(into, GpuTensor):
        if isinstance(source, GpuTensor):
            _give(gpu, into.plain, source.plain)
        else:
            _to_device(gpu, into, source, non_blocking)
    elif isinstance(source, GpuTensor):
        _from_device(gpu, into, source, non_blocking)
    else:
        gpu.host_touches(source, writes=False)
        gpu.host_touches(into, writes=True)
        torch.ops.aten.copy_.default(into, source, non_blocking)
    return into


def to_copy(gpu: Gpu, source: Tensor, **options: Any) -> Tensor:
    """Simulates a call ``source.to(...)`` that makes a new tensor; returns the tensor."""
    from simulated_gpu.operators import empty

    non_blocking = bool(options.pop("non_blocking", False))
    target = torch.device(options.pop("device", None) or source.device)
    like = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype, device="meta")
    like = torch.ops.aten._to_copy.default(like, **options)
    if target.type == "cuda":
        into: Tensor = empty(gpu, like)
    else:
        into = torch.empty_strided(like.size(), like.stride(), dtype=like.dtype)
    return copy(gpu, into, source, non_blocking)


def to_host(gpu: Gpu, source: GpuTensor) -> Tensor:
    """Returns a copy on the CPU. The host waits for the elements."""
    into = torch.empty_strided(source.size(), source.stride(), dtype=source.dtype)
    _from_device(gpu, into, source, non_blocking=False)
    return into


def from_values(gpu: Gpu, values: Tensor) -> Tensor:
    """Returns a tensor on the GPU with these elements."""
    from simulated_gpu.operators import empty

    made = empty(gpu, values)
    _give(gpu, made.plain, values, reads=False)
    return made


def _give(gpu: Gpu, into: Tensor, source: Tensor, reads: bool = True) -> None:
    touched = [(into, True), (source, False)] if reads else [(into, True)]
    gpu.kernels.add(("copy", into.dtype, source.dtype))
    gpu.launch(gpu.current, lambda: into.copy_(source), touched)


def _to_device(gpu: Gpu, into: GpuTensor, source: Tensor, non_blocking: bool) -> None:
    if gpu.is_page_locked(source):
        if not non_blocking:
            gpu.forbid("a copy that the host waits for")
        _give(gpu, into.plain, source)
        if not non_blocking:
            gpu.wait_for(gpu.current)
        return
    # From pageable memory: the bytes are taken now, and the host may go on.
    if source.dim():
        gpu.forbid("a copy from memory that is not page-locked")
    gpu.host_touches(source, writes=False)
    _give(gpu, into.plain, source.clone(), reads=False)
    if not non_blocking:
        gpu.forbid("a copy that the host waits for")
        gpu.wait_for(gpu.current)


def _from_device(gpu: Gpu, into: Tensor, source: GpuTensor, non_blocking: bool) -> None:
    plain = source.plain
    if gpu.is_page_locked(into):
        if not non_blocking:
            gpu.forbid("a copy that the host waits for")
        _give(gpu, into, plain)
        if not non_blocking:
            gpu.wait_for(gpu.current)
        return
    gpu.forbid("a copy that the host waits for")
    gpu.launch(gpu.current, lambda: into.copy_(plain), [(plain, False)])
    gpu.wait_for(gpu.current)
    gpu.host_touches(into, writes=True)
