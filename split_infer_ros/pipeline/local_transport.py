"""The way to a head in the same process: slots of this process, and handles as they are."""

from __future__ import annotations

from collections.abc import Callable

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import LEASE_S, FeatureReader, SlotPool
from split_infer_ros.pipeline.frame import Handle
from split_infer_ros.pipeline.transport import Released

Submit = Callable[[Handle, FeatureReader], None]  # as ``HeadStage.submit``


class LocalTransport:
    """Hands each handle to one head.

    Args:
        submit: takes a handle and the pool in which its slot lies.
        lease_s: how long a head may leave a slot untouched before it counts as gone, seconds.
    """

    def __init__(self, submit: Submit, lease_s: float = LEASE_S) -> None:
        self._submit = submit
        self._lease_s = lease_s

    def connect(self, released: Released, collect: Callable[[], None]) -> LocalConnection:
        """Opens the way; see ``Transport.connect``."""
        return LocalConnection(self._submit, released, self._lease_s)


class LocalConnection:
    """The open way to one head; arguments as ``LocalTransport`` and its ``connect`` have them."""

    shared = False

    def __init__(self, submit: Submit, released: Released, lease_s: float) -> None:
        self._submit = submit
        self._released = released
        self._lease_s = lease_s

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        """Allocates slots; raises ConfigurationError if the memory cannot be had."""
        return SlotPool.allocate(layout, slots, place, lease_s=self._lease_s, released=self._released)

    def send(self, handle: Handle, pool: SlotPool) -> int:
        """Hands the handle over; returns 1, as there is one head."""
        self._submit(handle, pool)
        return 1
