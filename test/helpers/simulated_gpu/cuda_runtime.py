"""Simulates the part of ``cuda.bindings.runtime`` that the package uses."""

from __future__ import annotations

import ctypes
import math
import weakref
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simulated_gpu.allocator import POISON
from simulated_gpu.clocks import join, place_of_call
from simulated_gpu.gpu import RELAXED
from simulated_gpu.memory_map import Region
from simulated_gpu.tensors import GpuTensor

if TYPE_CHECKING:
    from simulated_gpu.gpu import Gpu

PAGE = 4096
DEVICE_OFFSET = 1 << 46  # from the host's address of registered memory to the device's; not all devices have one
_OUTLIVED: dict[int, Any] = {}  # the memory that objects still hold of GPUs that are not simulated any more, by address


def take_outlived(address: int) -> bool:
    """Frees the memory at an address if it belongs to a GPU that is not simulated any more; returns whether it did."""
    if address not in _OUTLIVED:
        return False
    del _OUTLIVED[address]
    return True


class Runtime:
    """Stands in for ``cuda.bindings.runtime``. A call returns a status and its results. Enumerations are the real ones.

    Args:
        gpu: the simulated GPU.
        real: the real module.

    Attributes:
        refuse: calls that fail from now on: the name of the status that each returns, by the name of the call.
    """

    def __init__(self, gpu: Gpu, real: ModuleType) -> None:
        self._gpu = gpu
        self._real = real
        self._arrays: dict[int, Any] = {}  # kept to the end: what is freed is poisoned, and not unmapped
        self.refuse: dict[str, str] = {}

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("cuda") or not callable(found := _own(self, name)):
            return object.__getattribute__(self, name)
        gpu = object.__getattribute__(self, "_gpu")
        gpu.calls.append(name)
        refusal = "cudaErrorLaunchFailure" if gpu.sticky else object.__getattribute__(self, "refuse").get(name)
        if refusal and not name.startswith("cudaGet"):
            return lambda *_: (self.status(refusal), 0, 0)[: _RESULTS.get(name, 1)]
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    @property
    def gpu(self) -> Gpu:
        """The simulated GPU."""
        return self._gpu

    def status(self, name: str = "cudaSuccess") -> Any:
        """Returns the CUDA status with a name."""
        return getattr(self._real.cudaError_t, name)

    def cudaGetErrorString(self, status: Any) -> tuple[Any, bytes]:
        return self.status(), status.name.encode()

    def cudaGetErrorName(self, status: Any) -> tuple[Any, bytes]:
        return self.status(), status.name.encode()

    def cudaGetLastError(self) -> tuple[Any]:
        return (self.status(),)

    def cudaDeviceGetAttribute(self, attribute: Any, index: int) -> tuple[Any, int]:
        return self.status(), int(attribute.name not in self._gpu.absent)

    def cudaSetDevice(self, index: int) -> tuple[Any]:
        return (self.status(),)

    def cudaMemGetInfo(self) -> tuple[Any, int, int]:
        return self.status(), self._gpu.free_bytes, self._gpu.total

    def cudaHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, int]:
        return self._allocate("mapped", nbytes)

    def cudaMallocManaged(self, nbytes: int, flags: int) -> tuple[Any, int]:
        status, address = self._allocate("managed", nbytes)
        region = self._gpu.memory.find(address)
        if region is not None and int(flags) == int(self._real.cudaMemAttachHost):
            region.attached = "host"
        return status, address

    def cudaFreeHost(self, address: int) -> tuple[Any]:
        return self._free("mapped", address)

    def cudaFree(self, address: int) -> tuple[Any]:
        return self._free("managed", address)

    def cudaMemset(self, address: int, value: int, nbytes: int) -> tuple[Any]:
        gpu = self._gpu
        gpu.launch(gpu.default, lambda: ctypes.memset(address, value, nbytes), [(_plain(address, nbytes), True)])
        return (self.status(),)

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> tuple[Any]:
        gpu = self._gpu
        with gpu.lock:
            if gpu.memory.find(address) is not None:
                return (self.status("cudaErrorHostMemoryAlreadyRegistered"),)
            if nbytes > gpu.page_lockable - gpu.page_locked_bytes:
                return (self.status("cudaErrorMemoryAllocation"),)
            name = f"{nbytes:,} bytes page-locked at {place_of_call()}"
            gpu.memory.add(Region(address, nbytes, "registered", name))
        return (self.status(),)

    def cudaHostUnregister(self, address: int) -> tuple[Any]:
        gpu = self._gpu
        with gpu.lock:
            region = gpu.memory.find(address)
            if region is None and take_outlived(address):
                return (self.status(),)
            if region is None or region.start != address or region.kind != "registered":
                return (self.status("cudaErrorHostMemoryNotRegistered"),)
            if (refusal := self._forbidden("memory was unregistered")) is not None:
                return refusal
            self._check_free(region)
            gpu.processor.finish_all()
            gpu.memory.remove(region)
        return (self.status(),)

    def cudaHostGetDevicePointer(self, address: int, flags: int) -> tuple[Any, int]:
        region = self._gpu.memory.find(address)
        if region is None or region.kind not in ("mapped", "registered"):
            return self.status("cudaErrorInvalidValue"), 0
        return self.status(), address + DEVICE_OFFSET * (region.kind == "registered")

    def cudaStreamAttachMemAsync(self, stream: Any, address: int, length: int, flags: int) -> tuple[Any]:
        gpu = self._gpu
        with gpu.lock:
            queue, region = gpu.queue_of(int(stream)), gpu.memory.find(address)
            owners = {self._real.cudaMemAttachHost: "host", self._real.cudaMemAttachSingle: queue}
            owner = owners.get(flags)
            if region is None or region.kind != "managed" or queue.capture is not None or owner is gpu.default:
                return (self.status("cudaErrorInvalidValue"),)
            region.attached = None
            gpu.launch(queue, lambda: None, [(_plain(region.start, region.size), True)])
            region.attached = owner
        return (self.status(),)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[Any, int]:
        with self._gpu.lock:
            queue = self._gpu.new_queue(f"stream {len(self._gpu.processor.queues)} made at {place_of_call()}")
        return self.status(), queue.handle

    def cudaStreamDestroy(self, stream: Any) -> tuple[Any]:
        with self._gpu.lock:
            queue = self._gpu.queue_of(int(stream))
            if not queue.alive or queue.capture is not None:
                self._gpu.faults.append(f"{queue.name} was destroyed twice, or while it was recorded.")
            queue.alive = False
        return (self.status(),)

    def cudaStreamSynchronize(self, stream: Any) -> tuple[Any]:
        self._gpu.wait_for(self._gpu.queue_of(int(stream)))
        return (self.status(),)

    def cudaDeviceSynchronize(self) -> tuple[Any]:
        self._gpu.wait_for_all()
        return (self.status(),)

    def end(self) -> None:
        """Ends the simulation of this GPU. Its remaining memory may then be freed while another GPU is simulated."""
        regions = self._gpu.memory.regions()
        _OUTLIVED.update((region.start, self._arrays.get(region.start)) for region in regions if region.is_shared)

    def as_tensor(self, owner: Any) -> GpuTensor:
        """Returns a tensor on the GPU over memory of the host. CUDA must be able to reach this memory.

        ``owner`` describes the memory by ``__cuda_array_interface__``.
        """
        gpu, facts = self._gpu, owner.__cuda_array_interface__
        address, (nbytes,) = facts["data"][0], facts["shape"]
        with gpu.lock:
            if (region := gpu.memory.find(address)) is not None and region.kind == "registered":
                gpu.fault("A GPU tensor was made over an address of the host.")
            if (behind := gpu.memory.find(address - DEVICE_OFFSET)) is not None and behind.kind == "registered":
                address, region = address - DEVICE_OFFSET, behind
            if region is None:
                if "cudaDevAttrPageableMemoryAccess" in gpu.absent:
                    gpu.fault("A GPU tensor was made over memory that the GPU cannot reach.")
                region = gpu.memory.add(Region(address, nbytes, "pageable", f"{nbytes:,} bytes of the host's memory"))
                weakref.finalize(owner, self._forget, region).atexit = False
        return GpuTensor.make(gpu, _plain(address, nbytes), owner, torch.is_inference_mode_enabled())

    def _allocate(self, kind: str, nbytes: int) -> tuple[Any, int]:
        gpu = self._gpu
        with gpu.lock:
            gpu.allocator.drain()
            if nbytes > self._room(kind):
                return self.status("cudaErrorMemoryAllocation"), 0
            if kind == "managed" and gpu.managed_bytes + nbytes > gpu.total - gpu.allocator.reserved_on_device:
                gpu.faults.append(f"More managed memory than the GPU can hold, which can hang it ({place_of_call()}).")
            array = (ctypes.c_ubyte * (nbytes + PAGE))()
            address = -(-ctypes.addressof(array) // PAGE) * PAGE
            self._arrays[address] = array
            ctypes.memset(address, POISON, nbytes)
            gpu.memory.add(
                Region(address, nbytes, kind, f"{nbytes:,} bytes of {kind} memory made at {place_of_call()}")
            )
        return self.status(), address

    def _room(self, kind: str) -> float:
        """Returns how many bytes CUDA would grant. Where pages come late, it grants any amount of managed memory."""
        gpu = self._gpu
        if kind == "managed":
            return math.inf if gpu.pages_come_late else gpu.free_bytes
        return gpu.page_lockable - gpu.page_locked_bytes

    def _free(self, kind: str, address: int) -> tuple[Any]:
        """Waits for the whole device, which spoils recordings."""
        gpu = self._gpu
        with gpu.lock:
            region = gpu.memory.find(address)
            if region is None and take_outlived(address):
                return (self.status(),)
            if region is None or region.start != address or region.kind != kind:
                gpu.faults.append(f"Memory was freed twice, or was never {kind} ({place_of_call()}).")
                return (self.status("cudaErrorInvalidValue"),)
            refusal = self._forbidden("page-locked or managed memory was freed")
            if refusal is not None:
                return refusal
            self._check_free(region)
            gpu.processor.finish_all()
            ctypes.memset(region.start, POISON, region.size)
            gpu.memory.remove(region)
        return (self.status(),)

    def _check_free(self, region: Region) -> None:
        gpu = self._gpu
        host = gpu.host()
        known = dict(host.clock)
        join(known, gpu.known)
        for actor in gpu.threads():
            known[actor.number] = actor.epoch  # who is not through with it would still hold it
        gpu.memory.touch(region, 0, region.size, host, known, True, f"{place_of_call()} (it is freed)")

    def _forbidden(self, what: str) -> tuple[Any] | None:
        """Refuses a call that waits for the whole device beside any thread's recording, which it spoils.

        By CUDA's documentation, the recordings of other threads bear it.
        """
        gpu = self._gpu
        if not gpu.captures or gpu.capture_mode_of_thread == RELAXED:
            return None
        for capture in gpu.captures:
            capture.failure = capture.failure or what
        return (self.status("cudaErrorStreamCaptureUnsupported"),)

    def _forget(self, region: Region) -> None:
        with self._gpu.lock:
            self._gpu.processor.finish_all()
            self._gpu.memory.remove(region)


_RESULTS = {"cudaHostAlloc": 2, "cudaMallocManaged": 2, "cudaHostGetDevicePointer": 2, "cudaStreamCreateWithFlags": 2}
_RESULTS["cudaMemGetInfo"] = 3


def _own(runtime: Runtime, name: str) -> Any:
    return object.__getattribute__(runtime, name) if name in Runtime.__dict__ else None


def _plain(address: int, nbytes: int) -> Tensor:
    with torch._C._DisableTorchDispatch(), torch.inference_mode(False):
        return torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(address), dtype=torch.uint8)
