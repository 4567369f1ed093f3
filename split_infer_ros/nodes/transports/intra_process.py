"""The transport ``intra_process``: backbone and head in one process, and the handle goes over as an object."""

from __future__ import annotations

from typing import Any

from rclpy.qos import QoSProfile

from split_infer_ros.buffers.pool import find_pool
from split_infer_ros.errors import HandleError
from split_infer_ros.msg import FeatureHandle
from split_infer_ros.nodes.intra_process import IntraProcessPublisher, IntraProcessSubscription
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.nodes.transports.messages import handle_message
from split_infer_ros.pipeline.frame import Handle
from split_infer_ros.pipeline.head_stage import HeadStage
from split_infer_ros.pipeline.local import LocalTransport
from split_infer_ros.split.model import SplitModel


class IntraProcessSender(LocalTransport):
    """Keeps slots in this process and publishes handles to them on ``features``."""

    def __init__(self, node: ManagedNode[Any], model: SplitModel) -> None:
        self._publisher = IntraProcessPublisher(
            node, FeatureHandle, "features", QoSProfile(depth=10), to_message=_to_message
        )
        super().__init__(self._publisher.publish)

    def close(self) -> None:
        """Removes the publisher from the topic."""
        self._publisher.destroy()


class IntraProcessReceiver:
    """Takes handles from the backbone of this process."""

    is_standby = False  # every head that subscribes to this backbone is in its process

    def __init__(self, node: ManagedNode[Any], model: SplitModel, stage: HeadStage) -> None:
        self._stage = stage
        self._subscription = IntraProcessSubscription(
            node, FeatureHandle, "features", QoSProfile(depth=10), receive=self._receive
        )

    def stop_receiving(self) -> None:
        """Takes no more handles."""
        self._subscription.destroy()

    def close(self) -> None:
        """Does nothing, because the memory is the backbone's."""

    def _receive(self, handle: Handle) -> None:
        try:
            self._stage.submit(handle, find_pool(handle.lease))
        except HandleError as error:
            self._stage.refuse(error)


def _to_message(handle: Handle) -> FeatureHandle:
    pool = find_pool(handle.lease)
    return handle_message(handle, pool.layout, pool.views(handle.lease, len(handle.origins)))
