"""The transport ``intra_process``: backbone and head are in one process, and the head gets the handle as an object."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from rclpy.qos import QoSProfile

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import SlotPool
from split_infer_ros.msg import FeatureHandle
from split_infer_ros.nodes.intra_process import IntraProcessPublisher, topic_key
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.messages import handle_message
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.local_transport import LocalHead
from split_infer_ros.server.transport import Released
from split_infer_ros.split.model import SplitModel

_heads: defaultdict[tuple[int, str], list[LocalHead]] = defaultdict(list)  # the heads of this process, by topic
_prepared: dict[tuple[int, str], tuple[str, str, int]] = {}  # the arguments of the last ``prepare_head``, by topic


class IntraProcessSender:
    """Keeps slots in this process. Gives each handle to the heads of this process by a function call.

    It also publishes the handles as messages on ``features`` while a remote subscriber exists.

    Args:
        node: the backbone's node.
        topic_prefix: text in front of the topic's name.

    Attributes:
        is_used: whether a model instance uses this sender.
    """

    shared = False

    def __init__(self, node: ManagedNode[Any], topic_prefix: str) -> None:
        self.is_used = False
        topic = f"{topic_prefix}features"
        self._publisher = IntraProcessPublisher(node, FeatureHandle, topic, QoSProfile(depth=10))
        self._key = topic_key(node, topic)
        self._heads = _heads[self._key]

    def connect(self, released: Released, collect: Callable[[], None]) -> IntraProcessSender:
        """Returns this sender as the connection of the only model instance.

        Args:
            released: called with the lease and the outcome of each slot that a head gives back.
            collect: not used, because no other process reads the slots.
        """
        self._released = released
        self.is_used = True
        return self

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        """Allocates a pool of slots in this process."""
        return SlotPool.allocate(layout, slots, place, released=self._released)

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Asks the heads of this process to prepare a partition. Heads that come later prepare it too."""
        _prepared[self._key] = model, split_point, batch_size
        for head in tuple(self._heads):
            head.prepare(model, split_point, batch_size)

    @property
    def heads_reached(self) -> int:
        """How many heads of this process, and remote subscribers of ``features``, would get a handle now."""
        return len(self._heads) + self._publisher.has_remote_subscribers

    def send(self, handle: Handle, pool: SlotPool) -> int:
        """Gives the handle to all heads of this process. Returns the number of these heads."""
        heads = tuple(self._heads)
        # The message is made before a head gets the slot: a head may release it within microseconds.
        message = None
        if self._publisher.has_remote_subscribers:
            message = handle_message(handle, pool.layout, pool.views(handle.lease, len(handle.origins)))
        for head in heads:
            head.submit(handle, pool)
        if message is not None:
            self._publisher.publish(message)
        return len(heads)

    def disconnect(self) -> None:
        """Notes that no model instance uses this sender any more."""
        self.is_used = False

    def close(self) -> None:
        """Removes the publisher from the topic."""
        _prepared.pop(self._key, None)
        self._publisher.destroy()


class IntraProcessReceiver:
    """Gives the handles of this process's backbone to a head's stage. For the arguments, see ``Receiver``."""

    is_standby = False  # all heads of the backbone's process get each handle, so none stands by

    def __init__(self, node: ManagedNode[Any], model: SplitModel, stage: HeadStage) -> None:
        key = topic_key(node, "features")
        if key in _prepared:  # the backbone is active already
            stage.prepare(*_prepared[key])
        self._heads = _heads[key]
        self._stage = stage
        self._heads.append(stage)

    def stop_receiving(self) -> None:
        """Ends the reception of handles."""
        self._heads.remove(self._stage)

    def close(self) -> None:
        """Does nothing, because the backbone owns the memory."""
