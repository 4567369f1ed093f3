"""Memory policies: the kinds of memory for buffers that CPU and GPU share, and what a GPU needs for each."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass

from split_infer_ros.errors import ConfigurationError


class Side(enum.Enum):
    """A processor whose memory a buffer takes."""

    HOST = "host"
    DEVICE = "device"


class DeviceMapping(enum.Enum):
    """How the GPU reaches the bytes of a buffer."""

    NONE = "none"  # the GPU does not reach them
    COPIED = "copied"  # each side has a buffer of its own, and bytes are copied between them
    MIGRATED = "migrated"  # there is one buffer, whose pages move to the side that touches them
    DIRECT = "direct"  # there is one buffer on the host, which the GPU reads and writes in place


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """The attributes of a GPU that decide which policies it allows, from ``cudaDeviceGetAttribute``.

    Attributes:
        integrated: CPU and GPU share their memory.
        managed_memory: managed memory can be allocated.
        concurrent_managed_access: the CPU may touch managed memory while the GPU works.
        can_map_host_memory: the GPU can reach page-locked memory of the host.
        host_register_supported: existing memory can be page-locked.
        uses_host_page_tables: the GPU reaches all memory of the host through the host's own page tables. A GPU without
            this, but with pageable memory access (HMM), faults page by page.
    """

    integrated: bool
    managed_memory: bool
    concurrent_managed_access: bool
    can_map_host_memory: bool
    host_register_supported: bool
    uses_host_page_tables: bool


@dataclass(frozen=True, slots=True)
class Requirement:
    """An attribute that a GPU must have.

    Attributes:
        attribute: the name of a field of ``DeviceAttributes``.
        otherwise: a clause for people that says what is missing.
    """

    attribute: str
    otherwise: str


_MANAGED = Requirement("managed_memory", "this GPU has no managed memory (its attribute managedMemory is 0)")
_HOST_TABLES = Requirement(
    "uses_host_page_tables",
    "memory that two processes map is managed memory only where the attribute "
    "pageableMemoryAccessUsesHostPageTables is not 0",
)
_MAPPED = Requirement(
    "can_map_host_memory", "this GPU cannot reach the host's memory (its attribute canMapHostMemory is 0)"
)
_REGISTERED = Requirement(
    "host_register_supported",
    "memory that two processes map cannot be page-locked here (the attribute hostRegisterSupported is 0)",
)


class Policy(enum.Enum):
    """A memory policy (co-optimising memory management, §II). The letters are the paper's.

    - ``HOST``: plain memory of the host. Without a GPU, every policy becomes this one.
    - ``DEVICE`` (D): two buffers, one on the GPU and a page-locked one on the host, with copies between them.
    - ``MANAGED`` (M): one buffer whose pages move to the side that touches them.
    - ``PINNED`` (H): one page-locked buffer of the host, which the GPU reads and writes in place.
    """

    HOST = "host"
    DEVICE = "device"
    MANAGED = "managed"
    PINNED = "pinned"

    @property
    def mapping(self) -> DeviceMapping:
        """How the GPU reaches the bytes of a buffer."""
        return _PROPERTIES[self].mapping

    @property
    def sides(self) -> Collection[Side]:
        """The sides whose memory a buffer takes. The pages of managed memory can lie on either side."""
        return _PROPERTIES[self].sides

    @property
    def needs_gpu(self) -> bool:
        """True if the policy exists only with a GPU."""
        return self.mapping is not DeviceMapping.NONE

    @property
    def needs_copy(self) -> bool:
        """True if each side has a buffer of its own, so that bytes must be copied between the sides."""
        return self.mapping is DeviceMapping.COPIED

    @property
    def maps_on_access(self) -> bool:
        """True if pages are mapped while the GPU accesses them. The GPU can run other work while it waits for pages."""
        return self.mapping is DeviceMapping.MIGRATED

    @property
    def takes_device_memory(self) -> bool:
        """True if a buffer can take memory of the GPU."""
        return Side.DEVICE in self.sides

    def footprint_bytes(self, nbytes: int) -> int:
        """Returns the memory that a buffer of ``nbytes`` takes, on both sides together."""
        return 2 * nbytes if self.needs_copy else nbytes

    def reason_forbidden(self, attributes: DeviceAttributes, shared: bool = False) -> str:
        """Returns why a GPU does not allow the policy, in words that name the attribute; empty if the GPU allows it.

        Args:
            attributes: the attributes of the GPU.
            shared: True for memory that another process also maps.
        """
        properties = _PROPERTIES[self]
        requirements = properties.shared_requirements if shared else properties.own_requirements
        return next((each.otherwise for each in requirements if not getattr(attributes, each.attribute)), "")


@dataclass(frozen=True, slots=True)
class _Properties:
    """The properties of a policy.

    Attributes:
        mapping: how the GPU reaches the bytes.
        sides: the sides whose memory a buffer takes.
        own_requirements: what a GPU must have for memory of this process.
        shared_requirements: what a GPU must have for memory that another process also maps.
    """

    mapping: DeviceMapping
    sides: Collection[Side]
    own_requirements: tuple[Requirement, ...] = ()
    shared_requirements: tuple[Requirement, ...] = ()


_PROPERTIES = {
    Policy.HOST: _Properties(DeviceMapping.NONE, sides={Side.HOST}),
    Policy.DEVICE: _Properties(
        DeviceMapping.COPIED, sides={Side.HOST, Side.DEVICE}, shared_requirements=(_REGISTERED,)
    ),
    Policy.MANAGED: _Properties(
        DeviceMapping.MIGRATED,
        sides={Side.HOST, Side.DEVICE},
        own_requirements=(_MANAGED,),
        shared_requirements=(_HOST_TABLES,),
    ),
    Policy.PINNED: _Properties(
        DeviceMapping.DIRECT, sides={Side.HOST}, own_requirements=(_MAPPED,), shared_requirements=(_MAPPED, _REGISTERED)
    ),
}

AUTO = "auto"  # the value of the parameter memory_policy that lets the package choose
POLICIES = tuple(policy for policy in Policy if policy.needs_gpu)
FALLBACK = Policy.PINNED  # the policy that replaces another one if the GPU has no room


def legal_policies(attributes: DeviceAttributes, shared: bool = False) -> tuple[Policy, ...]:
    """Returns the policies that a GPU allows; arguments as for ``Policy.reason_forbidden``."""
    return tuple(policy for policy in POLICIES if not policy.reason_forbidden(attributes, shared))


def find_policy(name: str, attributes: DeviceAttributes | None, shared: bool = False) -> Policy:
    """Returns the policy with a name.

    Args:
        name: ``device``, ``managed`` or ``pinned``.
        attributes: the attributes of the GPU; None if the backbone runs on the CPU, where all memory is plain.
        shared: True for memory that another process also maps.

    Raises:
        ConfigurationError: there is no such policy, or the GPU does not allow it.
    """
    by_name = {policy.value: policy for policy in POLICIES}
    if name not in by_name:
        raise ConfigurationError(f"memory_policy cannot be '{name}'; it takes one of: {', '.join((*by_name, AUTO))}.")
    if attributes is None:
        return Policy.HOST
    reason = by_name[name].reason_forbidden(attributes, shared)
    if reason:
        legal = ", ".join((*(policy.value for policy in legal_policies(attributes, shared)), AUTO))
        raise ConfigurationError(f"memory_policy cannot be '{name}': {reason}; it takes one of: {legal}.")
    return by_name[name]
