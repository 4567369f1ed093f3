"""The backbone's side of the transport ``network``: a head on another host gets the features themselves over DDS.

Of several heads, one gets the batches. Each head sends a heartbeat twice a second. The backbone chooses one head,
announces it, and addresses each batch to it. The other heads stand by. They do not subscribe, so no features go to
them.
"""

from __future__ import annotations

import array
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from rclpy.qos import QoSProfile

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import SlotPool, find_pool
from split_infer_ros.errors import HandleError
from split_infer_ros.msg import FeatureBatch, FeatureRelease, HeadClaim
from split_infer_ros.nodes.endpoints import LATCHED, create_publisher, create_steady_timer, create_subscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.head_monitor import SILENT_S, HeadMonitor
from split_infer_ros.nodes.transports.head_registry import HeadRegistry
from split_infer_ros.nodes.transports.messages import batch_message, read_release
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.transport import OwnedPool, Released

DEPTH = 8
CHECK_S = 0.25  # how often the backbone checks whether the active head is alive


class NetworkSender:
    """Publishes copies of features on ``features/data``. The head says on ``features/release`` when a batch is done.

    Args:
        node: the backbone's node.
        topic_prefix: text in front of the topics' names.

    Attributes:
        connections: one connection for each model instance that uses this sender.
    """

    def __init__(self, node: ManagedNode[Any], topic_prefix: str) -> None:
        self.connections: set[NetworkConnection] = set()
        self._node = node
        features, qos = f"{topic_prefix}features", QoSProfile(depth=DEPTH)
        self._publisher = create_publisher(node, FeatureBatch, f"{features}/data", qos)
        self._registry = HeadRegistry(SILENT_S)
        self._announced = ""  # the head that was announced last
        self._choices = create_publisher(node, HeadClaim, f"{features}/head", LATCHED)
        self._claims = create_subscription(node, HeadClaim, f"{features}/heads", self._receive_claim, qos)
        self._timer = create_steady_timer(node, CHECK_S, self._check_heads)
        self._monitor = HeadMonitor(node, self._receive_release, self._drop_sent_before, topic_prefix)

    @property
    def is_used(self) -> bool:
        """Whether a model instance uses this sender."""
        return bool(self.connections)

    @property
    def heads_reached(self) -> int:
        """How many living heads would get a batch that is sent now."""
        return self._monitor.count_reached(self._publisher) if self._announced else 0

    def connect(self, released: Released, collect: Callable[[], None]) -> NetworkConnection:
        """Opens a connection for a model instance.

        Args:
            released: called with the lease and the outcome of each batch that a head has finished.
            collect: not used, because releases come as messages.
        """
        connection = NetworkConnection(self, released)
        self.connections.add(connection)
        return connection

    def send(self, make_message: Callable[[str], FeatureBatch]) -> int:
        """Publishes a message for the active head.

        Args:
            make_message: called with the name of the active head; returns the message for it. It is called only if that
                head would get the message.

        Returns:
            How many heads the message reaches.
        """
        active = self._announced
        heads = self.heads_reached if active else 0  # the choice may change, so ``active`` keeps it
        if heads:
            self._publisher.publish(make_message(active))
        return heads

    def close(self) -> None:
        """Removes the sender from its topics."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._claims)
        self._node.destroy_publisher(self._choices)
        self._node.destroy_publisher(self._publisher)
        self._monitor.close()

    def _receive_claim(self, claim: HeadClaim) -> None:
        """Receives a head's heartbeat, or its message that it leaves."""
        now = time.monotonic()
        if claim.leaves:
            self._registry.remove(claim.head, now)
        else:
            self._registry.heartbeat(claim.head, now)
        self._announce_active()

    def _check_heads(self) -> None:
        self._registry.update(time.monotonic())
        self._announce_active()

    def _announce_active(self) -> None:
        if self._registry.active != self._announced:
            self._announced = self._registry.active
            self._choices.publish(HeadClaim(head=self._announced))

    def _drop_sent_before(self, moment: float) -> None:
        """Settles the batches sent before ``moment``: their head has died, so it will not release them."""
        for connection in tuple(self.connections):
            connection.drop_sent_before(moment)

    def _receive_release(self, message: FeatureRelease) -> None:
        lease, outcome = read_release(message, time.monotonic())
        try:
            find_pool(lease).release(lease, outcome)
        except HandleError as error:
            self._node.warn(error)


class NetworkConnection:
    """Keeps the slots of one model instance in this process. The sender publishes copies of them.

    Args:
        sender: publishes features on its topics.
        released: called with the lease and the outcome of each batch that is over.

    Attributes:
        sender: the sender that publishes the copies.
    """

    shared = False

    def __init__(self, sender: NetworkSender, released: Released) -> None:
        self.sender = sender
        self._released = released
        self._pools: WeakSet[SlotPool] = WeakSet()
        self._staged = array.array("B")

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        """Allocates slots in this process. A batch keeps its slot until its head is done, which bounds the traffic."""
        pool = SlotPool.allocate(layout, slots, place, released=self._released)
        self._pools.add(pool)
        return pool

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Does nothing: a head in another process prepares a partition at its first batch."""

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publishes the features of a batch. Returns how many heads they reach.

        The message holds only the features of the batch's frames, and not those of the unused part of the slot.
        """
        frames = len(handle.origins)
        packed = Layout(pool.layout.specs, frames)
        features = pool.views(handle.lease, frames)
        return self.sender.send(
            lambda head: batch_message(head, handle, packed, features, self._staging(packed.slot_bytes))
        )

    def disconnect(self) -> None:
        """Removes the connection from its sender. After that, the death of a head does not drop its batches."""
        self.sender.connections.discard(self)

    def drop_sent_before(self, moment: float) -> None:
        """Drops the batches that were sent before ``moment``, in seconds of the steady clock.

        Their head has died, so their frames are counted as dropped for ``reader_died``.
        """
        for pool in list(self._pools):
            for lease, outcome in pool.reclaim_orphans(moment):
                self._released(lease, outcome)

    def _staging(self, size: int) -> array.array[int]:
        """Returns the bytes from which features are published. They are reused: allocating costs more than copying."""
        if len(self._staged) != size:
            self._staged = array.array("B", (0,)) * size
        return self._staged
