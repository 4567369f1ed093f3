"""``network``: backbone and head on two hosts; the features themselves go over DDS."""

from __future__ import annotations

import array
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from rclpy.qos import QoSProfile
from torch import Tensor

from split_infer_ros.buffers.layout import Layout
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import FeaturePool, find_pool
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError
from split_infer_ros.msg import FeatureBatch, FeatureRelease
from split_infer_ros.nodes.endpoints import advertise, listen
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.heads import RELEASE_QOS, Heads
from split_infer_ros.nodes.transports.messages import handle_message, read_handle, read_release, release_message
from split_infer_ros.pipeline.frame import Handle
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.transport import OwnedPool, Released
from split_infer_ros.split.model import SplitModel

DEPTH = 8


class NetworkSender:
    """Slots of this process; copies of them on ``features/data``, settled by what comes on ``features/release``."""

    shared = False

    def __init__(self, node: ManagedNode, model: SplitModel) -> None:
        self._node = node
        self._publisher = advertise(node, FeatureBatch, "features/data", QoSProfile(depth=DEPTH))
        self._heads = Heads(node, self._receive, self._give_up)
        self._pools: WeakSet[FeaturePool] = WeakSet()
        self._staged = array.array("B")

    def bind(self, released: Released, wake: Callable[[], None]) -> None:
        """Say whom to tell of batches that a head is done with."""
        self._released = released

    def make_pool(self, layout: Layout, slots: int, place: Place) -> FeaturePool:
        """Slots of this process: a batch keeps its slot until the head is done, which bounds what is under way."""
        pool = FeaturePool(layout, slots, place)
        pool.when_released(self._released)
        self._pools.add(pool)
        return pool

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publish the features; returns to how many heads."""
        heads = self._heads.reached_by(self._publisher)
        if heads:
            frames = len(handle.origins)
            packed = Layout(pool.layout.specs, frames)  # no bytes for frames that are not there
            data = self._staging(packed.slot_bytes)
            staged = packed.views(torch.frombuffer(data, dtype=torch.uint8), frames)
            for place, feature in zip(staged, pool.views(handle.lease, frames), strict=True):
                place.copy_(feature)
            sent = Handle(handle.lease, handle.model, handle.split_point, frames, "", handle.origins)
            self._publisher.publish(FeatureBatch(handle=handle_message(sent, packed), data=data))
        return heads

    def close(self) -> None:
        """Leave the topics."""
        self._node.destroy_publisher(self._publisher)
        self._heads.close()

    def _staging(self, size: int) -> array.array[int]:
        """Bytes to publish from; publishing leaves nothing behind in them, and new ones cost more than the copy."""
        if len(self._staged) != size:
            self._staged = array.array("B", (0,)) * size
        return self._staged

    def _give_up(self, before: float) -> None:
        """A head died: what was sent to it does not come back."""
        for pool in list(self._pools):
            for lease, outcome in pool.orphaned(before):
                self._released(lease, outcome)

    def _receive(self, message: FeatureRelease) -> None:
        lease, outcome = read_release(message, time.monotonic())
        try:
            find_pool(lease).release(lease, outcome)
        except HandleError as error:
            self._node.warn(error)


class NetworkReceiver:
    """Takes features from ``features/data``."""

    def __init__(self, node: ManagedNode, model: SplitModel, stage: HeadStage) -> None:
        self._node = node
        self._model = model
        self._stage = stage
        self._publisher = advertise(node, FeatureRelease, "features/release", RELEASE_QOS)
        self._subscription = listen(node, FeatureBatch, "features/data", self._receive, QoSProfile(depth=DEPTH))

    def leave(self) -> None:
        """Take no more features."""
        self._node.destroy_subscription(self._subscription)

    def close(self) -> None:
        """Leave the topic, once all that came is released."""
        self._node.destroy_publisher(self._publisher)

    def _receive(self, message: FeatureBatch) -> None:
        try:
            handle, layout = read_handle(message.handle, self._model)
            if len(message.data) != layout.slot_bytes:
                raise HandleError(
                    "malformed", f"{len(message.data):,} bytes of features came where {layout.slot_bytes:,} belong."
                )
            self._stage.submit(handle, _Received(message.data, layout, self._publisher))
        except HandleError as error:
            self._stage.refuse(error)


class _Received:
    """Features that came by value: nobody else reads them."""

    def __init__(self, data: array.array[int], layout: Layout, publisher: Any) -> None:
        self._data = torch.frombuffer(data, dtype=torch.uint8)
        self._layout = layout
        self._publisher = publisher

    def take(self, lease: Lease) -> None:
        """Nothing to claim."""

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The received tensors."""
        return self._layout.views(self._data, batch)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Tell the backbone that it may use the slot again."""
        self._publisher.publish(release_message(lease, outcome))
