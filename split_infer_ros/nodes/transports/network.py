"""The transport ``network``: backbone and head on two hosts, and the features themselves go over DDS.

One of several heads has the batches. Each head sends a heartbeat twice a second. The backbone chooses one, announces
it, and addresses each batch to it. The other heads stand by and do not subscribe, so no features go to them.
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
from split_infer_ros.nodes.endpoints import create_publisher, create_subscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.head_monitor import RELEASE_QOS, SILENT_S, HeadMonitor
from split_infer_ros.nodes.transports.head_registry import HeadRegistry
from split_infer_ros.nodes.transports.messages import handle_message, read_handle, read_release, release_message
from split_infer_ros.server.frame import Handle
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.server.transport import OwnedPool, Released
from split_infer_ros.split.model import SplitModel

DEPTH = 8
HEARTBEAT_S = 0.5
CHECK_S = 0.25  # how often the backbone checks whether the active head is alive
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


class NetworkSender:
    """Keeps slots in this process and publishes copies of them on ``features/data``.

    Messages on ``features/release`` settle them.
    """

    shared = False

    def __init__(self, node: ManagedNode[Any], model: SplitModel) -> None:
        self._node = node
        self._publisher = create_publisher(node, FeatureBatch, "features/data", QoSProfile(depth=DEPTH))
        self._monitor: HeadMonitor | None = None
        self._registry = HeadRegistry(SILENT_S)
        self._announced = ""  # the head that was announced last
        self._choices = create_publisher(node, HeadClaim, "features/head", LATCHED)
        self._claims = create_subscription(
            node, HeadClaim, "features/heads", self._receive_claim, QoSProfile(depth=DEPTH)
        )
        self._timer = node.create_steady_timer(CHECK_S, self._check_heads)
        self._pools: WeakSet[SlotPool] = WeakSet()
        self._staged = array.array("B")

    def connect(self, released: Released, collect: Callable[[], None]) -> NetworkSender:
        """Registers ``released``, which is called with each batch that a head has finished."""
        self._released = released
        self._monitor = HeadMonitor(self._node, self._receive_release, self._drop_sent_before)
        return self

    def make_pool(self, layout: Layout, slots: int, place: Place) -> SlotPool:
        """Allocates slots in this process. A batch keeps its slot until the head is done, which bounds the traffic."""
        pool = SlotPool.allocate(layout, slots, place, released=self._released)
        self._pools.add(pool)
        return pool

    def prepare_head(self, model: str, split_point: str, batch_size: int) -> None:
        """Does nothing: a head of another process prepares a partition with its first batch."""

    def send(self, handle: Handle, pool: OwnedPool) -> int:
        """Publishes the features; returns to how many heads."""
        active = self._announced
        assert self._monitor is not None
        if not active:
            return 0
        heads = self._monitor.count_reached(self._publisher)
        if heads:
            self._publisher.publish(self._batch_message(handle, pool, active))
        return heads

    def close(self) -> None:
        """Removes the sender from its topics."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._claims)
        self._node.destroy_publisher(self._choices)
        self._node.destroy_publisher(self._publisher)
        if self._monitor is not None:
            self._monitor.close()

    def _batch_message(self, handle: Handle, pool: OwnedPool, head: str) -> FeatureBatch:
        """Returns the message with a copy of a batch's features, without bytes for frames that the batch lacks."""
        frames = len(handle.origins)
        features = pool.views(handle.lease, frames)
        packed = Layout(pool.layout.specs, frames)
        data = self._staging(packed.slot_bytes)
        strides = [dense_strides(feature) for feature in features]
        staged = packed.views(torch.frombuffer(data, dtype=torch.uint8), frames, strides)
        for copy, feature in zip(staged, features, strict=True):
            copy.copy_(feature)
        sent = Handle(
            lease=handle.lease,
            model=handle.model,
            split_point=handle.split_point,
            batch_capacity=frames,
            segment="",
            origins=handle.origins,
        )
        return FeatureBatch(head=head, handle=handle_message(sent, packed, staged), data=data)

    def _receive_claim(self, claim: HeadClaim) -> None:
        """Receives a head's heartbeat, or its word that it leaves."""
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

    def _staging(self, size: int) -> array.array[int]:
        """Returns the bytes to publish from. They are reused, because new ones cost more than the copy."""
        if len(self._staged) != size:
            self._staged = array.array("B", (0,)) * size
        return self._staged

    def _drop_sent_before(self, moment: float) -> None:
        """Settles what was sent before ``moment`` to a head that has died since, because it does not come back."""
        for pool in list(self._pools):
            for lease, outcome in pool.reclaim_orphans(moment):
                self._released(lease, outcome)

    def _receive_release(self, message: FeatureRelease) -> None:
        lease, outcome = read_release(message, time.monotonic())
        try:
            find_pool(lease).release(lease, outcome)
        except HandleError as error:
            self._node.warn(error)


class NetworkReceiver:
    """Takes features from ``features/data`` while the backbone has chosen this head.

    Attributes:
        is_standby: True while the backbone has chosen another head.
    """

    def __init__(self, node: ManagedNode[Any], model: SplitModel, stage: HeadStage) -> None:
        self.is_standby = False
        self._node = node
        self._model = model
        self._stage = stage
        self._name = secrets.token_hex(8)
        self._publisher: Any = None  # from the first choice on: the backbone monitors the head by its liveliness
        self._subscription: Any = None  # while this head is chosen
        self._claims = create_publisher(node, HeadClaim, "features/heads", LATCHED)
        self._choices = create_subscription(node, HeadClaim, "features/head", self._receive_choice, LATCHED)
        self._timer = node.create_steady_timer(HEARTBEAT_S, self._send_heartbeat)
        self._send_heartbeat()

    def stop_receiving(self) -> None:
        """Takes no more features."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._choices)
        self._unsubscribe()
        self._claims.publish(HeadClaim(head=self._name, leaves=True))

    def close(self) -> None:
        """Removes the receiver from its topics, once all that came is released."""
        self._node.destroy_publisher(self._claims)
        if self._publisher is not None:
            self._node.destroy_publisher(self._publisher)

    def _send_heartbeat(self) -> None:
        self._claims.publish(HeadClaim(head=self._name))

    def _receive_choice(self, choice: HeadClaim) -> None:
        """Receives the backbone's choice of a head."""
        self.is_standby = choice.head not in ("", self._name)
        if choice.head != self._name:
            self._unsubscribe()
        elif self._subscription is None:
            self._subscribe()

    def _subscribe(self) -> None:
        if self._publisher is None:
            self._publisher = create_publisher(self._node, FeatureRelease, "features/release", RELEASE_QOS)
        qos = QoSProfile(depth=DEPTH)
        self._subscription = create_subscription(self._node, FeatureBatch, "features/data", self._receive, qos)

    def _unsubscribe(self) -> None:
        if self._subscription is not None:
            self._node.destroy_subscription(self._subscription)
            self._subscription = None

    def _receive(self, message: FeatureBatch) -> None:
        if message.head != self._name:  # the backbone has just chosen another head
            return
        try:
            handle, layout, strides = read_handle(message.handle, self._model)
            if len(message.data) != layout.slot_bytes:
                raise HandleError(
                    "malformed", f"{len(message.data):,} bytes of features came where {layout.slot_bytes:,} belong."
                )
            reader = _ReceivedFeatures(data=message.data, layout=layout, strides=strides, publisher=self._publisher)
            self._stage.submit(handle, reader)
        except HandleError as error:
            self._stage.refuse(error)


class _ReceivedFeatures:
    """Reads features that came by value, which no other head reads."""

    def __init__(self, *, data: array.array[int], layout: Layout, strides: tuple[Strides, ...], publisher: Any) -> None:
        self._data = torch.frombuffer(data, dtype=torch.uint8)
        self._layout = layout
        self._strides = strides
        self._publisher = publisher

    def take(self, lease: Lease) -> None:
        """Does nothing, because the features need not be claimed."""

    def views(self, lease: Lease, batch: int) -> tuple[Tensor, ...]:
        """Returns the received tensors."""
        return self._layout.views(self._data, batch, self._strides)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Tells the backbone that it may use the slot again."""
        self._publisher.publish(release_message(lease, outcome))
