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
        """Accepts a handle to a slot that ``reader`` gives access to."""

    def prepare(self, model: str, split_point: str, batch_size: int) -> None:
        """Prepares a partition if this head runs the model; raises ConfigurationError if it cannot."""


class LocalTransport:
    """Hands each handle to one head.

    Args:
        head: takes handles and the pools in which their slots lie.
        lease_s: seconds for which the head may leave a slot untouched before the head counts as gone.
    """

    def __init__(self, head: LocalHead, lease_s: float = LEASE_S) -> None:
        self._head = head
        self._lease_s = lease_s

    def connect(self, released: Released, collect: Callable[[], None]) -> LocalConnection:
        """Opens the connection; see ``Transport.connect``."""
        return LocalConnection(self._head, released, self._lease_s)


class LocalConnection:
    """The open connection to one head. For its arguments, see ``LocalTransport`` and ``Transport.connect``."""

    shared = False

    def __init__(self, head: LocalHead, released: Released, lease_s: float) -> None:
        self._head = head
        self._released = released
        self._lease_s = lease_s

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        """Allocates slots; raises ConfigurationError if the memory cannot be had."""
        return SlotPool.allocate(layout, slots, place, lease_s=self._lease_s, released=self._released)

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Has the head prepare a partition; see ``Connection.prepare_head``."""
        self._head.prepare(model, split_point, batch_size)

    def send(self, handle: Handle, pool: SlotPool) -> int:
        """Hands the handle over; returns 1, because there is one head."""
        self._head.submit(handle, pool)
        return 1

    def disconnect(self) -> None:
        """Does nothing, because the head keeps nothing of a connection without batches."""
