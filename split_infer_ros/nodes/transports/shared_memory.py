"""``shared_memory``: backbone and head in two processes of one host; the handle goes over DDS, the features stay.

Of several heads one takes the batches. It is the one that holds a lock of the segment, which ends with its process. The
others stand by. They hear each handle, and look several times a second whether the lock is free.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rclpy.qos import QoSProfile
from torch import Tensor

from split_infer_ros.buffers.layout import Layout, Strides
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.segment import remove_leftovers
from split_infer_ros.buffers.shared_pool import SharedSlotPool
from split_infer_ros.buffers.shared_reader import SharedSlotReader
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError
from split_infer_ros.msg import FeatureHandle, FeatureRelease
from split_infer_ros.nodes.endpoints import advertise, listen
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.heads import RELEASE_QOS, Heads
from split_infer_ros.nodes.transports.messages import handle_message, read_handle, release_message
from split_infer_ros.pipeline.frame import Handle
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.transport import OwnedPool, Released
from split_infer_ros.split.model import SplitModel

DEPTH = 64  # as many handles as a slot pool can have slots
LOOK_S = 0.1  # how often a head that stands by looks whether the other one is gone
GRACE_S = 0.5  # for so long a new segment is left to the head that has the batches

_Batch = tuple[Handle, tuple[Strides, ...]]


class SharedMemorySender:
    """Slots in a segment of shared memory; handles on ``features``, and a look at the slots on each ``release``."""

    shared = True

    def __init__(self, node: ManagedNode, model: SplitModel) -> None:
        self._node = node
        for name in remove_leftovers():
            node.get_logger().info(f"Removed the shared memory {name} of a backbone that was killed.")
        self._publisher = advertise(node, FeatureHandle, "features", QoSProfile(depth=DEPTH))
        self._heads = Heads(node, lambda _: self._collect(), lambda _: self._collect())

    def connect(self, released: Released, collect: Callable[[], None]) -> SharedMemorySender:
        """Say who looks at the slots: what became of a batch stands there, the message only says that it does."""
        self._collect = collect
        return self

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SharedSlotPool:
        """Slots in a new segment."""
        return SharedSlotPool.allocate(layout, slots, place)

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publish the handle; returns to how many heads."""
        heads = self._heads.reached_by(self._publisher)
        if heads:
            features = pool.views(handle.lease, len(handle.origins))
            self._publisher.publish(handle_message(handle, pool.layout, features))
        return heads

    def close(self) -> None:
        """Leave the topics."""
        self._node.destroy_publisher(self._publisher)
        self._heads.close()


@dataclass(slots=True, eq=False)
class _Source:
    """A segment that handles point to.

    Attributes:
        reader: of its slots.
        since: when the first handle came, seconds of the steady clock.
        taken: whether this head takes its batches.
        left: those that were left to another head, the newest ones.
    """

    reader: SharedSlotReader
    since: float
    taken: bool = False
    left: deque[_Batch] = field(default_factory=lambda: deque(maxlen=DEPTH))


class SharedMemoryReceiver:
    """Takes handles from ``features`` and reads where they point."""

    def __init__(self, node: ManagedNode, model: SplitModel, stage: HeadStage) -> None:
        self._node = node
        self._model = model
        self._stage = stage
        self._sources: dict[tuple[str, str, int], _Source] = {}
        self._publisher = advertise(node, FeatureRelease, "features/release", RELEASE_QOS)
        self._subscription = listen(node, FeatureHandle, "features", self._receive, QoSProfile(depth=DEPTH))
        self._timer = node.every(LOOK_S, self._look)

    @property
    def stands_by(self) -> bool:
        """True while another head takes what comes."""
        return bool(self._sources) and not any(source.taken for source in self._sources.values())

    def leave(self) -> None:
        """Take no more handles."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._subscription)

    def close(self) -> None:
        """Let go of the memory, once nothing there is being read, and of the right to read it."""
        self._node.destroy_publisher(self._publisher)
        for source in self._sources.values():
            source.reader.disclaim()
        self._sources.clear()

    def _receive(self, message: FeatureHandle) -> None:
        stands_by = self.stands_by  # then a new segment is left to the head that has the old one
        try:
            handle, layout, strides = read_handle(message, self._model)
            source = self._source(handle, layout)
        except HandleError as error:
            self._stage.refuse(error)
            return
        if source.taken or (not stands_by and self._claim(source)):
            self._submit(source, (handle, strides))
        else:
            source.left.append((handle, strides))

    def _look(self) -> None:
        """Where the other head is gone, take its place."""
        for source in self._sources.values():
            is_due = time.monotonic() >= source.since + GRACE_S
            if not source.taken and is_due and source.reader.owner_lives:
                self._claim(source)

    def _claim(self, source: _Source) -> bool:
        """Become the head that takes a segment's batches, if there is no other; first those that the last one left."""
        source.taken = source.reader.claim()
        while source.taken and source.left:
            batch = source.left.popleft()
            if source.reader.is_ready(batch[0].lease):
                self._submit(source, batch)
        return source.taken

    def _submit(self, source: _Source, batch: _Batch) -> None:
        handle, strides = batch
        self._stage.submit(handle, _Notifying(source.reader, strides, self._publisher))

    def _source(self, handle: Handle, layout: Layout) -> _Source:
        place = handle.segment, handle.split_point, handle.batch_capacity  # what the layout follows from, too
        if place not in self._sources:
            source = _Source(SharedSlotReader.attach(handle.segment, layout), time.monotonic())
            # A backbone that went away, or moved its split point, will not use its former pools again. Their memory
            # goes once the last handle there is done with.
            self._sources = {where: old for where, old in self._sources.items() if old.reader.owner_lives}
            self._sources[place] = source
        return self._sources[place]


class _Notifying:
    """A reader of one batch, which lies by the handle's strides; it also says when it is done."""

    def __init__(self, reader: SharedSlotReader, strides: tuple[Strides, ...], publisher: Any) -> None:
        self._reader = reader
        self._strides = strides
        self._publisher = publisher

    def take(self, lease: Lease) -> None:
        """Begin to read."""
        self._reader.take(lease)

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The slot's tensors."""
        return self._reader.views(lease, batch, self._strides)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Done with the slot."""
        self._reader.release(lease, outcome)
        self._publisher.publish(release_message(lease, outcome))
