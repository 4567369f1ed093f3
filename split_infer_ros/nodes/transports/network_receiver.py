"""The head's side of the transport ``network``. A head gets copies of features while the backbone has chosen it."""

from __future__ import annotations

import array
import secrets
from typing import Any

import numpy as np
from rclpy.qos import QoSProfile

from split_infer_ros.buffers.host_arrays import BYTE, Array
from split_infer_ros.buffers.layout import Layout, Strides
from split_infer_ros.buffers.slots import Lease, Outcome
from split_infer_ros.errors import HandleError
from split_infer_ros.msg import FeatureBatch, FeatureRelease, HeadClaim
from split_infer_ros.nodes.endpoints import LATCHED, create_publisher, create_steady_timer, create_subscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.message_reader import MessageReader, read_messages
from split_infer_ros.nodes.transports.head_monitor import RELEASE_QOS
from split_infer_ros.nodes.transports.messages import read_handle, release_message
from split_infer_ros.nodes.transports.network import DEPTH
from split_infer_ros.server.head_stage import HeadStage
from split_infer_ros.split.model import SplitModel

HEARTBEAT_S = 0.5


class NetworkReceiver:
    """Takes features from ``features/data`` while the backbone has chosen this head. Gives them to the head's stage.

    For the arguments, see ``Receiver``.

    Attributes:
        is_standby: True while the backbone has chosen another head.
    """

    def __init__(self, node: ManagedNode[Any], model: SplitModel, stage: HeadStage) -> None:
        self.is_standby = False
        self._node = node
        self._model = model
        self._stage = stage
        self._name = secrets.token_hex(8)
        self._publisher: Any = None  # made at the first choice; the backbone watches its liveliness
        self._reader: MessageReader | None = None  # while this head is chosen; reads faster than the executor
        self._claims = create_publisher(node, HeadClaim, "features/heads", LATCHED)
        self._choices = create_subscription(node, HeadClaim, "features/head", self._receive_choice, LATCHED)
        self._timer = create_steady_timer(node, HEARTBEAT_S, self._send_heartbeat)
        self._send_heartbeat()

    def stop_receiving(self) -> None:
        """Ends the reception of features, and tells the backbone that this head leaves."""
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self._choices)
        self._unsubscribe()
        self._claims.publish(HeadClaim(head=self._name, leaves=True))

    def close(self) -> None:
        """Removes the receiver from its topics. Call it after all received batches are released."""
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
        elif self._reader is None:
            self._subscribe()

    def _subscribe(self) -> None:
        if self._publisher is None:
            self._publisher = create_publisher(self._node, FeatureRelease, "features/release", RELEASE_QOS)
        qos = QoSProfile(depth=DEPTH)
        self._reader = read_messages(self._node, FeatureBatch, "features/data", self._receive, qos, name="features")

    def _unsubscribe(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

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
    """Reads features that came in a message. No other head reads them."""

    def __init__(self, *, data: array.array[int], layout: Layout, strides: tuple[Strides, ...], publisher: Any) -> None:
        self._data = np.frombuffer(data, BYTE)
        self._layout = layout
        self._strides = strides
        self._publisher = publisher

    def take(self, lease: Lease) -> None:
        """Does nothing, because the features need not be claimed."""

    def views(self, lease: Lease, batch: int) -> tuple[Array, ...]:
        """Returns the received features."""
        return self._layout.views(self._data, batch, self._strides)

    def release(self, lease: Lease, outcome: Outcome) -> None:
        """Tells the backbone that it may use the slot again."""
        self._publisher.publish(release_message(lease, outcome))
