"""``shared_memory``: backbone and head in two processes of one host; the handle goes over DDS, the features stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSProfile
from torch import Tensor

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.segment import remove_leftovers
from split_infer_ros.buffers.shared_pool import SharedPool, SharedPoolReader
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

DEPTH = 64  # as many handles as a ring can have slots


class SharedMemorySender:
    """Slots in a segment of shared memory; handles on ``features``, and a look at the slots on each ``release``."""

    shared = True

    def __init__(self, node: ManagedNode, model: SplitModel) -> None:
        self._node = node
        for name in remove_leftovers():
            node.get_logger().info(f"Removed the shared memory {name} of a backbone that was killed.")
        self._publisher = advertise(node, FeatureHandle, "features", QoSProfile(depth=DEPTH))
        self._heads = Heads(node, lambda _: self._wake(), lambda _: self._wake())

    def bind(self, released: Released, wake: Callable[[], None]) -> None:
        """Say who looks at the slots: what became of a batch stands there, the message only says that it does."""
        self._wake = wake

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SharedPool:
        """Slots in a new segment."""
        return SharedPool(layout, slots, place)

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publish the handle; returns to how many heads."""
        heads = self._heads.reached_by(self._publisher)
        if heads:
            self._publisher.publish(handle_message(handle, pool.layout))
        return heads

    def close(self) -> None:
        """Leave the topics."""
        self._node.destroy_publisher(self._publisher)
        self._heads.close()


class SharedMemoryReceiver:
    """Takes handles from ``features`` and reads where they point."""

    def __init__(self, node: ManagedNode, model: SplitModel, stage: HeadStage) -> None:
        self._node = node
        self._model = model
        self._stage = stage
        self._readers: dict[tuple[str, str, int], SharedPoolReader] = {}
        self._publisher = advertise(node, FeatureRelease, "features/release", RELEASE_QOS)
        self._subscription = listen(node, FeatureHandle, "features", self._receive, QoSProfile(depth=DEPTH))

    def leave(self) -> None:
        """Take no more handles."""
        self._node.destroy_subscription(self._subscription)

    def close(self) -> None:
        """Let go of the memory, once nothing there is being read."""
        self._node.destroy_publisher(self._publisher)
        self._readers.clear()

    def _receive(self, message: FeatureHandle) -> None:
        try:
            handle, layout = read_handle(message, self._model)
            self._stage.submit(handle, _Notifying(self._reader(handle, layout), self._publisher))
        except HandleError as error:
            self._stage.refuse(error)

    def _reader(self, handle: Handle, layout: Layout) -> SharedPoolReader:
        place = handle.segment, handle.split_point, handle.batch_capacity  # what the layout follows from, too
        if place not in self._readers:
            reader = SharedPoolReader(handle.segment, layout)
            # a backbone that went away, or changed its cut, will not use its former rings again; the memory goes
            # once the last handle there is done with
            self._readers = {where: old for where, old in self._readers.items() if old.owner_lives}
            self._readers[place] = reader
        return self._readers[place]


class _Notifying:
    """A reader that also says when it is done."""

    def __init__(self, reader: SharedPoolReader, publisher: Any) -> None:
        self._reader = reader
        self._publisher = publisher

    def take(self, lease: Lease) -> None:
        """Begin to read."""
        self._reader.take(lease)

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The slot's tensors."""
        return self._reader.views(lease, batch)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Done with the slot."""
        self._reader.release(lease, outcome)
        self._publisher.publish(release_message(lease, outcome))
