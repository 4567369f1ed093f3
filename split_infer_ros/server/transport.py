"""The interfaces through which a backbone reaches its head: transport, connection and slot pool."""

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
    """A slot pool as the backbone that owns it sees it.

    Attributes:
        layout: the layout of one batch's tensors in a slot.
        leases: the leases of the slots.
        slots: the memory of the slots.
    """

    layout: Layout
    leases: SlotLeases
    slots: SlotMemory

    @property
    def memory(self) -> str:
        """The kind of memory that holds the slots, as a text for users."""

    @property
    def segment(self) -> str:
        """The name under which other processes find the pool; empty if they cannot use it."""

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""

    def with_policy(self, policy: Policy) -> OwnedPool | None:
        """Returns a pool of these slots and leases under another memory policy.

        Returns None if the memory of the slots does not support the policy.
        """

    def acquire(self) -> Lease | None:
        """Returns a lease on a free slot to write into; None while no slot is free."""

    def views(self, lease: Lease, batch: int) -> Features:
        """Returns the CPU's views of the slot's tensors for the first ``batch`` images, (batch, *shape) each."""

    def publish(self, lease: Lease, now: float) -> None:
        """Lets a head read the slot from ``now`` on (seconds of the steady clock)."""

    def revoke(self, lease: Lease) -> bool:
        """Takes the slot back, unless a reader uses it or gave it back. Returns whether it was taken back."""

    def collect(self, now: float) -> list[tuple[Lease, Outcome]]:
        """Takes back slots of expired leases, and slots that readers in other processes gave back or died with.

        Returns the lease and the outcome of each slot that was taken back. ``now`` is in seconds of the steady clock.
        """

    def close(self) -> None:
        """Frees the memory."""


Pool = TypeVar("Pool", bound=OwnedPool)


class Connection(Protocol[Pool]):
    """An open connection to heads: makes slots that they can read, and sends them handles."""

    @property
    def shared(self) -> bool:
        """Whether the slots lie in memory that other processes can map."""

    def make_pool(self, layout: Layout, slots: int, place: Place) -> Pool:
        """Allocates a slot pool.

        Args:
            layout: the layout of one batch's tensors in a slot.
            slots: number of slots.
            place: the memory policy, and the device on which the backbone runs.

        Raises:
            ConfigurationError: there is not enough memory.
        """

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Has the heads of this process prepare a head partition, so that its first batch need not wait.

        Heads of other processes prepare the partition when their first batch comes.

        Args:
            model: the model's name.
            split_point: where the model will be split.
            batch_size: size of full batches.

        Raises:
            ConfigurationError: a head cannot run the partition.
        """

    def send(self, handle: Handle, pool: Pool) -> int:
        """Sends a batch's handle to the heads. Returns the number of heads to which it was sent.

        Args:
            handle: the handle.
            pool: the pool that holds the batch's slot.
        """

    def disconnect(self) -> None:
        """Ends the connection. Call it when no batch is in flight. The owner of the transport closes the transport."""


class Transport(Protocol):
    """Brings handles and features from backbones to their heads. Each model instance opens a connection of its own."""

    def connect(self, released: Released, collect: Callable[[], None]) -> Connection[Any]:
        """Opens a connection for one model instance. Any thread may call this.

        Args:
            released: called on any thread with the lease and the outcome of each slot that a head gave back.
            collect: called on any thread when a reader in another process gave a slot back; see ``OwnedPool.collect``.
        """
