"""The transport ``shared_memory``: backbone and head in two processes of one host.

The handle goes over DDS, and the features stay in a segment of shared memory. If there are several heads, one of them
holds the lock of the segment, and this head takes the batches. The lock ends with the head's process. The other heads
stand by. They receive each handle, and check several times a second whether the lock is free.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rclpy.qos import QoSProfile

from split_infer_ros.buffers.layout import Layout, Strides
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.segment import remove_leftovers
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.buffers.shared_reader import SharedBatchReader, SharedSlotReader
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError
from split_infer_ros.msg import FeatureHandle, FeatureRelease
from split_infer_ros.nodes.endpoints import create_publisher, create_steady_timer
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.message_reader import read_messages
from split_infer_ros.nodes.transports.head_monitor import RELEASE_QOS, HeadMonitor
from split_infer_ros.nodes.transports.messages import handle_message, read_handle, release_message
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.transport import OwnedPool, Released
from split_infer_ros.split.model import SplitModel

DEPTH = 64  # the most slots that a pool can have, and so the most handles
CHECK_S = 0.1  # how often a standby head checks whether the active head is gone
GRACE_S = 0.5  # how long a standby head leaves a new segment to the active head

_Batch = tuple[Handle, tuple[Strides, ...]]


class SharedMemorySender:
    """Publishes handles to slots in shared memory on ``features``.

    A head writes into the slot what became of a batch. The model instances check their slots at each message on
    ``features/release``, and when a head dies.

    Args:
        node: the backbone's node.
        topic_prefix: text in front of the topics' names.

    Attributes:
        connections: one connection for each model instance that uses this sender.
    """

    def __init__(self, node: ManagedNode[Any], topic_prefix: str) -> None:
        self.connections: set[SharedMemoryConnection] = set()
        self._node = node
        for name in remove_leftovers():
            node.get_logger().info(f"Removed the shared memory {name} of a backbone that was killed.")
        self._publisher = create_publisher(node, FeatureHandle, f"{topic_prefix}features", QoSProfile(depth=DEPTH))
        self._monitor = HeadMonitor(node, lambda _: self._collect(), lambda _: self._collect(), topic_prefix)

    @property
    def is_used(self) -> bool:
        """Whether a model instance uses this sender."""
        return bool(self.connections)

    @property
    def heads_reached(self) -> int:
        """How many living heads would get a handle that is published now."""
        return self._monitor.count_reached(self._publisher)

    def connect(self, released: Released, collect: Callable[[], None]) -> SharedMemoryConnection:
        """Opens a connection for a model instance.

        Args:
            released: not used, because the slots themselves hold the outcomes of batches.
            collect: called when the model instance should check its slots.
        """
        connection = SharedMemoryConnection(self, collect)
        self.connections.add(connection)
        return connection

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publishes the handle; returns how many heads it reaches."""
        heads = self.heads_reached
        if heads:
            features = pool.views(handle.lease, len(handle.origins))
            self._publisher.publish(handle_message(handle, pool.layout, features))
        return heads

    def close(self) -> None:
        """Removes the sender from its topics."""
        self._node.destroy_publisher(self._publisher)
        self._monitor.close()

    def _collect(self) -> None:
        for connection in tuple(self.connections):
            connection.collect()


class SharedMemoryConnection:
    """Keeps the slots of one model instance in segments of shared memory.

    Args:
        sender: publishes handles.
        collect: checks the model instance's slots for outcomes of batches.

    Attributes:
        collect: makes the model instance check its slots.
    """

    shared = True

    def __init__(self, sender: SharedMemorySender, collect: Callable[[], None]) -> None:
        self.collect = collect
        self._sender = sender

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SharedSlotPool:
        """Allocates slots in a new segment of shared memory."""
        return SharedSlotPool.allocate(layout, slots, place)

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Does nothing: a head in another process prepares a partition at its first batch."""

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publishes the handle; returns how many heads it reaches."""
        return self._sender.send(handle, pool)

    def disconnect(self) -> None:
        """Removes the connection from its sender. After that, the sender no longer calls ``collect``."""
        self._sender.connections.discard(self)


@dataclass(slots=True, eq=False)
class _FeatureSegment:
    """A segment of shared memory to which handles point.

    Attributes:
        reader: reads the segment's slots.
        since: when the first handle to it came, in seconds of the steady clock.
        is_claimed: whether this head takes the segment's batches.
        unclaimed: the newest batches that this head left to another one.
    """

    reader: SharedSlotReader
    since: float
    is_claimed: bool = False
    unclaimed: deque[_Batch] = field(default_factory=lambda: deque(maxlen=DEPTH))


class SharedMemoryReceiver:
    """Takes handles from ``features``. Gives each to the head's stage, with a reader of the segment to which it points.

    A thread of its own takes the handles, because the node's executor takes longer; see ``MessageReader``. For the
    arguments, see ``Receiver``.
    """

    def __init__(self, node: ManagedNode[Any], model: SplitModel, stage: HeadStage) -> None:
        self._node = node
        self._model = model
        self._stage = stage
        self._segments: dict[tuple[str, str, int], _FeatureSegment] = {}  # replaced as a whole; any thread may read it
        self._publisher = create_publisher(node, FeatureRelease, "features/release", RELEASE_QOS)
        self._lock = threading.Lock()  # held while segments are attached or claimed
        self._reader = read_messages(
            node, FeatureHandle, "features", self._receive, QoSProfile(depth=DEPTH), name="features"
        )
        self._timer = create_steady_timer(node, CHECK_S, self._claim_orphans)

    @property
    def is_standby(self) -> bool:
        """True while another head takes the batches."""
        segments = self._segments.values()
        return bool(segments) and not any(segment.is_claimed for segment in segments)

    def stop_receiving(self) -> None:
        """Ends the reception of handles."""
        self._node.destroy_timer(self._timer)
        self._reader.close()

    def close(self) -> None:
        """Gives up the segments and this head's claims on them. Call it after the stage has stopped."""
        self._node.destroy_publisher(self._publisher)
        for segment in self._segments.values():
            segment.reader.disclaim()
        self._segments = {}

    def _receive(self, message: FeatureHandle) -> None:
        with self._lock:
            is_standby = self.is_standby  # a standby head leaves a new segment to the head that has the old one
            try:
                handle, layout, strides = read_handle(message, self._model)
                segment = self._segment_of(handle, layout)
            except HandleError as error:
                self._stage.refuse(error)
                return
            if segment.is_claimed or (not is_standby and self._claim(segment)):
                self._submit(segment, (handle, strides))
            else:
                segment.unclaimed.append((handle, strides))

    def _claim_orphans(self) -> None:
        """Claims segments that no head holds any more."""
        with self._lock:
            for segment in self._segments.values():
                is_due = time.monotonic() >= segment.since + GRACE_S
                if not segment.is_claimed and is_due and segment.reader.owner_lives:
                    self._claim(segment)

    def _claim(self, segment: _FeatureSegment) -> bool:
        """Claims a segment unless another head holds it.

        If that succeeds, submits the batches that were left to that head.
        """
        segment.is_claimed = segment.reader.claim()
        while segment.is_claimed and segment.unclaimed:
            batch = segment.unclaimed.popleft()
            if segment.reader.is_ready(batch[0].lease):
                self._submit(segment, batch)
        return segment.is_claimed

    def _submit(self, segment: _FeatureSegment, batch: _Batch) -> None:
        handle, strides = batch
        self._stage.submit(handle, SharedBatchReader(segment.reader, strides, self._publish_release))

    def _publish_release(self, lease: Lease, outcome: Outcome) -> None:
        self._publisher.publish(release_message(lease, outcome))

    def _segment_of(self, handle: Handle, layout: Layout) -> _FeatureSegment:
        key = handle.segment, handle.split_point, handle.batch_capacity  # these three fix the layout too
        if key not in self._segments:
            segment = _FeatureSegment(SharedSlotReader.attach(handle.segment, layout), time.monotonic())
            # A backbone that ended, or moved its split point, does not use its former pools again. Their memory is
            # freed once the last handle to them is released.
            kept = {name: old for name, old in self._segments.items() if old.reader.owner_lives}
            self._segments = {**kept, key: segment}
        return self._segments[key]
