"""CUDA's run-time API as far as memory goes, played by the host's own memory."""

from __future__ import annotations

import ctypes
import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import pytest
import torch

from split_infer_ros.buffers import cuda, memory

GPU = torch.device("cuda", 0)


class Status(IntEnum):
    cudaSuccess = 0
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidValue = 1


class Runtime:
    """Answers as cuda.bindings.runtime does; memory comes from the host, ``free`` bytes of it."""

    cudaError_t = Status
    cudaMemAttachGlobal, cudaMemAttachHost, cudaMemAttachSingle = 1, 2, 4
    cudaHostAllocPortable, cudaHostAllocMapped = 1, 2
    cudaHostRegisterPortable, cudaHostRegisterMapped = 1, 2

    class cudaDeviceAttr:
        def __getattr__(self, name: str) -> str:
            return name

    cudaDeviceAttr = cudaDeviceAttr()  # type: ignore[assignment,misc]

    def __init__(self) -> None:
        self.free = 1 << 20
        self.attributes = dict.fromkeys(cuda._ATTRIBUTES.values(), 1)
        self.live: dict[int, tuple[str, Any]] = {}
        self.registered: dict[int, int] = {}
        self.attached: list[tuple[int, int]] = []
        self.calls: Counter[str] = Counter()

    def cudaGetErrorString(self, status: Status) -> tuple[Status, bytes]:
        return Status.cudaSuccess, status.name.encode()

    def cudaGetLastError(self) -> tuple[Status]:
        return (Status.cudaSuccess,)

    def cudaDeviceGetAttribute(self, name: str, index: int) -> tuple[Status, int]:
        return Status.cudaSuccess, self.attributes[name]

    def cudaSetDevice(self, index: int) -> tuple[Status]:
        return (Status.cudaSuccess,)

    def cudaMemGetInfo(self) -> tuple[Status, int, int]:
        return Status.cudaSuccess, self.free, 1 << 20

    def _allocate(self, kind: str, nbytes: int) -> tuple[Status, int]:
        if nbytes > self.free:
            return Status.cudaErrorMemoryAllocation, 0
        self.free -= nbytes
        block = (ctypes.c_ubyte * nbytes)()
        address = ctypes.addressof(block)
        self.live[address] = kind, block
        self.calls[kind] += 1
        return Status.cudaSuccess, address

    def cudaMallocManaged(self, nbytes: int, flags: int) -> tuple[Status, int]:
        status, address = self._allocate("managed", nbytes)
        self.attached.append((address, flags))
        return status, address

    def cudaHostAlloc(self, nbytes: int, flags: int) -> tuple[Status, int]:
        assert flags == 3
        return self._allocate("mapped", nbytes)

    def _release(self, kind: str, address: int) -> tuple[Status]:
        found, block = self.live.pop(address)  # KeyError: freed twice
        assert found == kind
        self.free += len(block)
        return (Status.cudaSuccess,)

    def cudaFree(self, address: int) -> tuple[Status]:
        return self._release("managed", address)

    def cudaFreeHost(self, address: int) -> tuple[Status]:
        return self._release("mapped", address)

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> tuple[Status]:
        if nbytes > self.free:
            return (Status.cudaErrorMemoryAllocation,)
        assert address not in self.registered
        self.registered[address] = nbytes
        self.free -= nbytes
        return (Status.cudaSuccess,)

    def cudaHostUnregister(self, address: int) -> tuple[Status]:
        self.free += self.registered.pop(address)  # KeyError: twice
        return (Status.cudaSuccess,)

    def cudaHostGetDevicePointer(self, address: int, flags: int) -> tuple[Status, int]:
        return Status.cudaSuccess, address

    def cudaStreamAttachMemAsync(self, stream: int, address: int, length: int, flags: int) -> tuple[Status]:
        self.attached.append((address, flags))
        return (Status.cudaSuccess,)


@contextmanager
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """All calls go to a new Runtime; what torch would put on the GPU it puts on the CPU."""
    made = Runtime()
    monkeypatch.setattr(cuda, "_runtime", lambda: made)
    monkeypatch.setattr(memory._Owner, "on", lambda owner, device, address: owner.host())
    empty, zeros = torch.empty, torch.zeros
    monkeypatch.setattr(torch, "empty", lambda *a, device=None, **k: empty(*a, **k))
    monkeypatch.setattr(torch, "zeros", lambda *a, device=None, **k: zeros(*a, **k))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: type("Stream", (), {"cuda_stream": 7})())
    cuda.device_attributes.cache_clear()
    yield made
    cuda.device_attributes.cache_clear()
    gc.collect()
    assert made.live == {}, "memory that nobody frees"
    assert made.registered == {}, "memory that stays page-locked"
    assert made.free == 1 << 20
