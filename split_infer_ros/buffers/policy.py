"""Which memory lies behind a buffer that CPU and GPU share, and where each kind is legal."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from split_infer_ros.errors import ConfigurationError


class Policy(enum.Enum):
    """Kinds of memory (co-optimising memory management, §II).

    - ``HOST``: plain memory; what all others become where there is no GPU.
    - ``DEVICE``: two buffers, one on the GPU and a page-locked one on the host, and a copy between them (D).
    - ``MANAGED``: one buffer whose pages go where they are touched (M).
    - ``PINNED``: one page-locked buffer of the host that the GPU reads and writes where it lies (H).
    """

    HOST = "host"
    DEVICE = "device"
    MANAGED = "managed"
    PINNED = "pinned"


AUTO = "auto"
POLICIES = (Policy.DEVICE, Policy.MANAGED, Policy.PINNED)
FALLBACK = Policy.PINNED  # where the GPU has no room


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """What decides which policies a GPU allows, as ``cudaDeviceGetAttribute`` has it.

    Attributes:
        integrated: CPU and GPU share their memory.
        managed_memory: it can be allocated.
        concurrent_managed_access: the CPU may touch managed memory while the GPU is at work.
        can_map_host_memory: the GPU can reach page-locked memory of the host.
        host_register_supported: memory that was allocated otherwise can be page-locked.
        pageable_memory_access: the GPU can reach all memory of the host, page-locked or not.
    """

    integrated: bool
    managed_memory: bool
    concurrent_managed_access: bool
    can_map_host_memory: bool
    host_register_supported: bool
    pageable_memory_access: bool


def forbidden(policy: Policy, attributes: DeviceAttributes, shared: bool = False) -> str:
    """Why the policy cannot be had on this GPU, in words that name the attribute; empty if it can.

    Args:
        shared: the memory is one that another process has mapped, too.
    """
    if policy is Policy.MANAGED and shared:
        if attributes.pageable_memory_access:
            return ""  # then all memory behaves as managed memory does
        return "memory that two processes map is managed memory only where the attribute pageableMemoryAccess is not 0"
    if policy is Policy.MANAGED and not attributes.managed_memory:
        return "this GPU has no managed memory (its attribute managedMemory is 0)"
    if policy is Policy.PINNED and not attributes.can_map_host_memory:
        return "this GPU cannot reach the host's memory (its attribute canMapHostMemory is 0)"
    if policy in (Policy.PINNED, Policy.DEVICE) and shared and not attributes.host_register_supported:
        return "memory that two processes map cannot be page-locked here (the attribute hostRegisterSupported is 0)"
    return ""


def legal(attributes: DeviceAttributes, shared: bool = False) -> tuple[Policy, ...]:
    """The policies that this GPU allows."""
    return tuple(policy for policy in POLICIES if not forbidden(policy, attributes, shared))


def find_policy(name: str, attributes: DeviceAttributes | None, shared: bool = False) -> Policy:
    """The policy of that name.

    Args:
        name: ``device``, ``managed`` or ``pinned``.
        attributes: the GPU's; None where the backbone runs on the CPU, and all memory is plain.
        shared: the memory is one that another process has mapped, too.

    Raises:
        ConfigurationError: it is none, or this GPU does not allow it.
    """
    known = {policy.value: policy for policy in POLICIES}
    if name not in known:
        raise ConfigurationError(f"memory_policy cannot be '{name}'; it takes one of: {', '.join((*known, AUTO))}.")
    if attributes is None:
        return Policy.HOST
    why = forbidden(known[name], attributes, shared)
    if why:
        able = ", ".join((*(policy.value for policy in legal(attributes, shared)), AUTO))
        raise ConfigurationError(f"memory_policy cannot be '{name}': {why}; it takes one of: {able}.")
    return known[name]
