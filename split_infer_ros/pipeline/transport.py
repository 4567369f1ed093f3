"""What the backbone's stage needs of a way to its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.buffers.slots import Lease, Outcome, SlotLeases
from split_infer_ros.pipeline.frame import Handle

Released = Callable[[Lease, Outcome], None]


class OwnedPool(Protocol):
    """A pool as the backbone that owns it sees it."""

    layout: Layout
    leases: SlotLeases
    slots: SlotMemory

    @property
    def memory(self) -> str:
        """What the slots lie in."""

    @property
    def segment(self) -> str:
        """Name under which other processes find it; empty if they do not."""

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""

    def acquire(self) -> Lease | None:
        """A free slot to write into, or None while there is none."""

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The CPU's views of the tensors of ``batch`` images in the slot of a lease: (batch, *shape) each."""

    def publish(self, lease: Lease, now: float) -> None:
        """What is in the slot may be read."""

    def revoke(self, lease: Lease) -> bool:
        """Takes the slot back unless a reader has it or gave it back. Returns whether it was taken back."""

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        """Take back the slots that come back by themselves."""

    def close(self) -> None:
        """Free the memory."""


class Transport(Protocol):
    """Memory that a head can reach, and a way to tell it of a batch."""

    def bind(self, released: Released, wake: Callable[[], None]) -> None:
        """Say whom to tell of slots that were given back, and of slots that are worth a look."""

    shared: bool  # whether its slots are memory that another process maps, too

    def make_pool(self, layout: Layout, slots: int, place: Place) -> OwnedPool:
        """Allocate slots; raises ConfigurationError if the memory cannot be had."""

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Tell of a batch; returns to how many heads."""
