"""The transport to a head in the same process: slots are plain memory, and handles are passed as objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import LEASE_S, FeatureReader, SlotPool
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.transport import Released


class LocalHead(Protocol):
    """A head in this process, for example ``HeadStage``."""

    def submit(self, handle: Handle, reader: FeatureReader) -> None:
        """Queues a handle for the head. ``reader`` gives access to the handle's slot."""

    def prepare(self, model: str, split_point: str, batch_size: int) -> None:
        """Prepares the head behind a split point, if it is a head of this model.

        Raises:
            ConfigurationError: the head cannot run the partition.
        """


class LocalTransport:
    """Passes each handle to one head in this process.

    Args:
        head: the head. It gets each handle with the pool in which the slot lies.
        lease_s: seconds for which the head may leave a slot untouched. The slot is then taken back.
    """

    def __init__(self, head: LocalHead, lease_s: float = LEASE_S) -> None:
        self._head = head
        self._lease_s = lease_s

    def connect(self, released: Released, collect: Callable[[], None]) -> LocalConnection:
        """Opens a connection to the head; see ``Transport.connect``. ``collect`` is not used."""
        return LocalConnection(self._head, released, self._lease_s)


class LocalConnection:
    """The open connection to one head. For its arguments, see ``LocalTransport`` and ``Transport.connect``."""

    shared = False

    def __init__(self, head: LocalHead, released: Released, lease_s: float) -> None:
        self._head = head
        self._released = released
        self._lease_s = lease_s

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        """Allocates a pool of ``slots`` slots. Raises ConfigurationError if there is not enough memory."""
        return SlotPool.allocate(layout, slots, place, lease_s=self._lease_s, released=self._released)

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Has the head prepare a partition; see ``Connection.prepare_head``."""
        self._head.prepare(model, split_point, batch_size)

    def send(self, handle: Handle, pool: SlotPool) -> int:
        """Passes a handle to the head. Returns 1, the number of heads that got it."""
        self._head.submit(handle, pool)
        return 1

    def disconnect(self) -> None:
        """Does nothing, because the head keeps nothing of a connection that has no batch in flight."""
