"""``network``: backbone and head on two hosts; the features themselves go over DDS.

Of several heads one has the batches. Each says twice a second that it is there. The backbone chooses one, says which,
and addresses each batch to it. The others stand by and do not subscribe, so that no features go to them.
"""

from __future__ import annotations

import array
import secrets
import time
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from rclpy.qos import DurabilityPolicy, QoSProfile
from torch import Tensor

from split_infer_ros.buffers.layout import Layout, Strides, dense_strides
from split_infer_ros.buffers.memory import Place
from split_infer_ros.buffers.pool import SlotPool, find_pool
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError
from split_infer_ros.msg import FeatureBatch, FeatureRelease, HeadClaim
from split_infer_ros.nodes.endpoints import advertise, listen
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.head_roll import HeadRoll
from split_infer_ros.nodes.transports.heads import RELEASE_QOS, SILENT_S, Heads
from split_infer_ros.nodes.transports.messages import handle_message, read_handle, read_release, release_message
from split_infer_ros.pipeline.frame import Handle
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.transport import OwnedPool, Released
from split_infer_ros.split.model import SplitModel

DEPTH = 8
BEAT_S = 0.5  # how often a head says that it is there
LOOK_S = 0.25  # how often the backbone looks whether the active one still does
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class NetworkSender:
    """Slots of this process; copies of them on ``features/data``, settled by what comes on ``features/release``."""

    shared = False

    def __init__(self, node: ManagedNode, model: SplitModel) -> None:
        self._node = node
        self._publisher = advertise(node, FeatureBatch, "features/data", QoSProfile(depth=DEPTH))
        self._heads = Heads(node, self._receive, self._give_up)
        self._roll = HeadRoll(SILENT_S)
        self._active = ""  # as it was said last
        self._choices = advertise(node, HeadClaim, "features/head", LATCHED)
        self._claims = listen(node, HeadClaim, "features/heads", self._hear, QoSProfile(depth=DEPTH))
        self._timer = node.every(LOOK_S, self._look)
        self._pools: WeakSet[SlotPool] = WeakSet()
        self._staged = array.array("B")

    def connect(self, released: Released, collect: Callable[[], None]) -> NetworkSender:
        """Say whom to tell of batches that a head is done with."""
        self._released = released
        return self

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        """Slots of this process: a batch keeps its slot until the head is done, which bounds what is under way."""
        pool = SlotPool.allocate(layout, slots, place, released=self._released)
        self._pools.add(pool)
        return pool

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publish the features; returns to how many heads."""
        heads, active = self._heads.reached_by(self._publisher), self._active
        if not active:
            return 0
        if heads:
            frames = len(handle.origins)
            features = pool.views(handle.lease, frames)
            packed = Layout(pool.layout.specs, frames)  # no bytes for frames that are not there
            data = self._staging(packed.slot_bytes)
            staged = packed.views(
                torch.frombuffer(data, dtype=torch.uint8), frames, [dense_strides(each) for each in features]
            )
            for place, feature in zip(staged, features, strict=True):
                place.copy_(feature)
            sent = Handle(handle.lease, handle.model, handle.split_point, frames, "", handle.origins)
            self._publisher.publish(FeatureBatch(head=active, handle=handle_message(sent, packed, staged), data=data))
        return heads

    def close(self) -> None:
        """Leave the topics."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._claims)
        self._node.destroy_publisher(self._choices)
        self._node.destroy_publisher(self._publisher)
        self._heads.close()

    def _hear(self, claim: HeadClaim) -> None:
        """A head says that it is there, or that it leaves."""
        (self._roll.leave if claim.leaves else self._roll.hear)(claim.head, time.monotonic())
        self._choose()

    def _look(self) -> None:
        self._roll.look(time.monotonic())
        self._choose()

    def _choose(self) -> None:
        if self._roll.active != self._active:
            self._active = self._roll.active
            self._choices.publish(HeadClaim(head=self._active))

    def _staging(self, size: int) -> array.array[int]:
        """Bytes to publish from; publishing leaves nothing behind in them, and new ones cost more than the copy."""
        if len(self._staged) != size:
            self._staged = array.array("B", (0,)) * size
        return self._staged

    def _give_up(self, before: float) -> None:
        """A head died: what was sent to it does not come back."""
        for pool in list(self._pools):
            for lease, outcome in pool.reclaim_orphans(before):
                self._released(lease, outcome)

    def _receive(self, message: FeatureRelease) -> None:
        lease, outcome = read_release(message, time.monotonic())
        try:
            find_pool(lease).release(lease, outcome)
        except HandleError as error:
            self._node.warn(error)


class NetworkReceiver:
    """Takes features from ``features/data``, while the backbone has chosen this head.

    Attributes:
        stands_by: True while it has chosen another.
    """

    def __init__(self, node: ManagedNode, model: SplitModel, stage: HeadStage) -> None:
        self._node = node
        self._model = model
        self._stage = stage
        self.stands_by = False
        self._name = secrets.token_hex(8)
        self._publisher: Any = None  # since it was chosen first: the backbone knows it by this one's liveliness
        self._subscription: Any = None  # while it is chosen
        self._claims = advertise(node, HeadClaim, "features/heads", LATCHED)
        self._choices = listen(node, HeadClaim, "features/head", self._follow, LATCHED)
        self._timer = node.every(BEAT_S, self._beat)
        self._beat()

    def leave(self) -> None:
        """Take no more features."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._choices)
        self._unsubscribe()
        self._claims.publish(HeadClaim(head=self._name, leaves=True))

    def close(self) -> None:
        """Leave the topics, once all that came is released."""
        self._node.destroy_publisher(self._claims)
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)

    def _beat(self) -> None:
        self._claims.publish(HeadClaim(head=self._name))

    def _follow(self, choice: HeadClaim) -> None:
        """The backbone has chosen a head."""
        self.stands_by = choice.head not in ("", self._name)
        if choice.head != self._name:
            self._unsubscribe()
        elif self._subscription is None:
            if self._publisher is None:
                self._publisher = advertise(self._node, FeatureRelease, "features/release", RELEASE_QOS)
            qos = QoSProfile(depth=DEPTH)
            self._subscription = listen(self._node, FeatureBatch, "features/data", self._receive, qos)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def _receive(self, message: FeatureBatch) -> None:
        if message.head != self._name:  # the backbone has just chosen another
            return
        try:
            handle, layout, strides = read_handle(message.handle, self._model)
            if len(message.data) != layout.slot_bytes:
                raise HandleError(
                    "malformed", f"{len(message.data):,} bytes of features came where {layout.slot_bytes:,} belong."
                )
            self._stage.submit(handle, _Received(message.data, layout, strides, self._publisher))
        except HandleError as error:
            self._stage.refuse(error)


class _Received:
    """Features that came by value: nobody else reads them."""

    def __init__(self, data: array.array[int], layout: Layout, strides: tuple[Strides, ...], publisher: Any) -> None:
        self._data = torch.frombuffer(data, dtype=torch.uint8)
        self._layout = layout
        self._strides = strides
        self._publisher = publisher

    def take(self, lease: Lease) -> None:
        """Nothing to claim."""

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """The received tensors."""
        return self._layout.views(self._data, batch, self._strides)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Tell the backbone that it may use the slot again."""
        self._publisher.publish(release_message(lease, outcome))
