"""All memory that a GPU can reach, with the last accesses. Accesses that conflict and are not ordered are races."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field

from torch import Tensor

from simulated_gpu.clocks import Actor, Clock


@dataclass(frozen=True, slots=True)
class Access:
    """An access to bytes of a region.

    Attributes:
        start, end: offsets of the first byte and of the byte after the last.
        actor: the host thread, stream or branch that read or wrote the bytes.
        epoch: the epoch of the actor at the access.
        writes: whether it wrote the bytes.
        place: the line in the program.
    """

    start: int
    end: int
    actor: Actor
    epoch: int
    writes: bool
    place: str

    def __str__(self) -> str:
        return f"{self.actor.name} {'writes' if self.writes else 'reads'} them at {self.place}"


@dataclass(frozen=True, slots=True)
class Race:
    """Two accesses to the same bytes that nothing orders. At least one of them is a write.

    Attributes:
        region: the name of the region.
        first, second: the accesses, in the order in which they were noticed.
    """

    region: str
    first: Access
    second: Access

    def __str__(self) -> str:
        start, end = max(self.first.start, self.second.start), min(self.first.end, self.second.end)
        return (
            f"Bytes {start} to {end} of {self.region}: {self.second}, and nothing orders this after {self.first}; "
            "an event, or a wait for one, is missing between them."
        )


@dataclass(slots=True, eq=False)
class Region:
    """One allocation.

    Attributes:
        kind: ``device``, ``mapped`` (page-locked by CUDA), ``registered``, ``managed`` or ``pageable``.
        name: the name in reports.
        live: False once the allocation was freed.
        use: for a block of the allocator, how often it was given back.
        attached: who may touch managed memory, if host and device may not do so at once: None (all), ``host``, or a
            stream.
        resident: for managed memory, whether the device touched it last, and so has its pages.
        accesses: the last accesses that later ones are compared with.
    """

    start: int
    size: int
    kind: str
    name: str
    live: bool = True
    use: int = 0
    attached: object = None
    resident: bool = False
    accesses: list[Access] = field(default_factory=list)

    @property
    def is_shared(self) -> bool:
        """True if the host can touch these bytes as well."""
        return self.kind != "device"


class MemoryMap:
    """Keeps the regions of memory and the races that were found in them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._regions: dict[int, Region] = {}
        self.races: list[Race] = []
        self._shared = 0

    @property
    def has_shared(self) -> bool:
        """True while the host can touch any region."""
        return self._shared > 0

    def add(self, region: Region) -> Region:
        """Adds a region, and returns it."""
        insort(self._starts, region.start)
        self._regions[region.start] = region
        self._shared += region.is_shared
        return region

    def remove(self, region: Region) -> None:
        """Removes a region."""
        region.live = False
        if self._regions.get(region.start) is region:
            del self._regions[region.start]
            self._starts.remove(region.start)
            self._shared -= region.is_shared

    def find(self, address: int) -> Region | None:
        """Returns the region that contains an address; None if there is none."""
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        region = self._regions[self._starts[index]]
        return region if address < region.start + region.size else None

    def regions(self) -> list[Region]:
        """Returns all regions, by address."""
        return [self._regions[start] for start in self._starts]

    def touch(self, region: Region, start: int, end: int, actor: Actor, clock: Clock, writes: bool, place: str) -> None:
        """Compares an access with earlier ones, stores it, and adds races to ``races``.

        Args:
            region: the region.
            start, end: offsets of the first byte and of the byte after the last, from the region's first byte.
            actor: who reads or writes.
            clock: the work after which the access is ordered.
            writes: whether the bytes are written.
            place: the line in the program.
        """
        mine = Access(start, end, actor, clock.get(actor.number, 0), writes, place)
        kept = []
        for other in region.accesses:
            overlaps = other.start < end and start < other.end
            ordered = other.actor is actor or clock.get(other.actor.number, 0) >= other.epoch
            if overlaps and not ordered and (writes or other.writes):
                self.races.append(Race(region.name, other, mine))
                continue  # once is enough
            covered = start <= other.start and other.end <= end
            if not (covered and ordered and (writes or not other.writes)):
                kept.append(other)
        kept.append(mine)
        region.accesses = kept


def extent(plain: Tensor) -> tuple[int, int]:
    """Returns the addresses of a tensor's first byte and of the byte after its last."""
    if not plain.numel():
        return plain.data_ptr(), plain.data_ptr()
    last = sum((size - 1) * stride for size, stride in zip(plain.shape, plain.stride(), strict=True))
    start = plain.data_ptr()
    return start, start + (last + 1) * plain.itemsize
