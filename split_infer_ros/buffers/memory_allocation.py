"""Allocates memory that CPU and GPU share, under each policy. Also lets a GPU use existing memory.

On a CPU, memory is an array, and torch is not needed.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from split_infer_ros.buffers.host_arrays import BYTE, Array, empty_array
from split_infer_ros.buffers.memory import Memory, Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.runtime.cuda import OutOfMemory
from split_infer_ros.runtime.device import Device
from split_infer_ros.runtime.shortage import host_bytes_free, shortage


def allocate_at(place: Place, nbytes: int) -> Memory:
    """Allocates ``nbytes`` bytes of a place's policy for its device; see ``allocate``.

    A ``SwitchableMemory`` is returned if ``place.switchable`` is true, the policy is ``device``, and there is a GPU.
    """
    if not (place.switchable and place.policy is Policy.DEVICE and place.device.type == "cuda"):
        return allocate(place.policy, nbytes, place.device)
    from split_infer_ros.buffers.gpu_memory import allocate_switchable  # only here, because it imports torch

    return allocate_switchable(nbytes, place.device)


def allocate(policy: Policy, nbytes: int, device: Device) -> Memory:
    """Allocates memory.

    Args:
        policy: the kind of memory. On a CPU, every kind is ``HOST``.
        nbytes: the size in bytes.
        device: the device on which the backbone runs.

    Raises:
        OutOfMemory: there is not enough memory.
        ConfigurationError: this machine has no memory of this kind.
    """
    if device.type == "cpu" or policy is Policy.HOST:
        return _of_host(nbytes, lambda: empty_array((nbytes,), BYTE))
    from split_infer_ros.buffers.gpu_memory import allocate_on_gpu  # only here, because it imports torch

    return allocate_on_gpu(policy, nbytes, device)


def adopt(policy: Policy, host: memoryview, device: Device) -> Memory:
    """Lets a GPU use existing memory of the host, for example memory that another process also maps.

    Args:
        policy: the kind of memory. On a CPU, every kind is ``HOST``.
        host: the bytes, which begin at the start of a page. Call the result's ``release`` before they are unmapped.
        device: the device on which the backbone runs.

    Raises:
        OutOfMemory: the memory cannot be page-locked.
    """
    if device.type == "cpu" or policy is Policy.HOST:
        return _of_host(host.nbytes, lambda: np.frombuffer(host, np.uint8))
    from split_infer_ros.buffers.gpu_memory import adopt_on_gpu  # only here, because it imports torch

    return adopt_on_gpu(policy, host, device)


def _of_host(nbytes: int, make: Callable[[], Array]) -> Memory:
    try:
        host = make()
    except MemoryError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise OutOfMemory(f"{shortage(nbytes, host_bytes_free(), 'the host')} ({reason})") from error
    return Memory(Policy.HOST, host, host)
