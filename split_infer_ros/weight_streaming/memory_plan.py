"""Says which blocks of a partition stay in memory, and through which rings the others pass."""

from __future__ import annotations

from dataclasses import dataclass

from split_infer_ros.weight_streaming.ring_plan import RingPlan


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """How the blocks of a partition share memory.

    Attributes:
        resident_blocks: how many of the first blocks stay in memory.
        ring: the ring from which the layers read the other blocks.
        staging: the ring on the host from which these blocks are copied to ``ring`` (three stages). None if the disk
            writes to ``ring`` itself (two stages).
        is_lockstep: whether reading, copying and running advance together in cycles (synchronous pipeline). False for
            two stages: with two buffers, they advance together anyway.
    """

    resident_blocks: int
    ring: RingPlan
    staging: RingPlan | None = None
    is_lockstep: bool = False

    @property
    def ring_bytes(self) -> int:
        """Bytes of the rings on host and device together."""
        return self.ring.capacity + (0 if self.staging is None else self.staging.capacity)
