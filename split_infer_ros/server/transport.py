"""What a backbone needs of a way to its head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.policy import Policy
from split_infer_ros.buffers.slot_memory import SlotMemory
from split_infer_ros.buffers.slots import Lease, Outcome, SlotLeases
from split_infer_ros.engines.compute import Features
from split_infer_ros.server.frame import Handle

Released = Callable[[Lease, Outcome], None]


class OwnedPool(Protocol):
    """A slot pool as the backbone that owns it sees it."""

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

    def under(self, policy: Policy) -> OwnedPool | None:
        """The same slots and leases under another memory policy; None if their memory has only its own."""

    def acquire(self) -> Lease | None:
        """A free slot to write into, or None while there is none."""

    def views(self, lease: Lease, batch: int) -> Features:
        """The CPU's views of the tensors of ``batch`` images in the slot of a lease: (batch, *shape) each."""

    def publish(self, lease: Lease, now: float) -> None:
        """Lets a head read the slot."""

    def revoke(self, lease: Lease) -> bool:
        """Takes the slot back unless a reader is at it or gave it back; returns whether it was taken back."""

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        """Takes back the slots that come back by themselves."""

    def close(self) -> None:
        """Frees the memory."""


Pool = TypeVar("Pool", bound=OwnedPool)


class Connection(Protocol[Pool]):
    """Memory that a head can reach, and a way to tell it of a batch."""

    @property
    def shared(self) -> bool:
        """Whether the slots are memory that another process maps, too."""

    def make_pool(self, layout: Layout, slots: int, place: Place) -> Pool:
        """Allocates slots; raises ConfigurationError if the memory cannot be had."""

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Has the heads of this process prepare a partition, so that its first batch need not wait for that.

        Heads of other processes do so with the first batch.

        Args:
            model: the model's name.
            split_point: where it will be split.
            batch_size: of full batches.

        Raises:
            ConfigurationError: a head cannot run the partition.
        """

    def send(self, handle: Handle, pool: Pool) -> int:
        """Tells the heads of a batch; returns how many were told."""

    def disconnect(self) -> None:
        """Ends the way, once no batch will come back by it. Who opened the transport closes that."""


class Transport(Protocol):
    """A kind of way from backbones to their head."""

    def connect(self, released: Released, collect: Callable[[], None]) -> Connection[Any]:
        """Opens the way for one model instance, on any thread.

        Args:
            released: called with each slot that a head gave back, on any thread.
            collect: called when a reader in another process gave a slot back, on any thread: see ``OwnedPool.collect``.
        """
