"""Says which blocks of a partition stay in memory, and where the others pass through."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.weight_streaming.ring_plan import RingPlan


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the blocks of a partition share memory.

    Attributes:
        resident_blocks: how many of the first blocks stay in memory.
        ring: of the other blocks, as the layers read them.
        staging: of the same blocks on the host, from which they are copied to ``ring`` (three stages). None if the disk
            writes to ``ring`` itself (two stages).
        is_lockstep: whether a copied block, a read block and a running block share one cycle (synchronous pipeline).
            Two stages with two buffers share it by themselves.
    """

    resident_blocks: int
    ring: RingPlan
    staging: RingPlan | None = None
    is_lockstep: bool = False

    @property
    def ring_bytes(self) -> int:
        """Memory of the rings on all sides."""
        return self.ring.capacity + (0 if self.staging is None else self.staging.capacity)
