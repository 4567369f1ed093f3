"""``intra_process``: backbone and head in one process; the handle is handed over as it is."""

from __future__ import annotations

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
    """Slots of this process; handles to them on ``features``."""

    def __init__(self, node: ManagedNode, model: SplitModel) -> None:
        self._publisher = IntraProcessPublisher(node, FeatureHandle, "features", QoSProfile(depth=10), _to_message)
        super().__init__(self._publisher.publish)

    def close(self) -> None:
        """Leave the topic."""
        self._publisher.destroy()


class IntraProcessReceiver:
    """Takes handles from this process's backbone."""

    stands_by = False  # all that hear this backbone are in its process

    def __init__(self, node: ManagedNode, model: SplitModel, stage: HeadStage) -> None:
        self._stage = stage
        self._subscription = IntraProcessSubscription(
            node, FeatureHandle, "features", QoSProfile(depth=10), self._receive
        )

    def leave(self) -> None:
        """Take no more handles."""
        self._subscription.destroy()

    def close(self) -> None:
        """Nothing to let go of: the memory is the backbone's."""

    def _receive(self, handle: Handle) -> None:
        try:
            self._stage.submit(handle, find_pool(handle.lease))
        except HandleError as error:
            self._stage.refuse(error)


def _to_message(handle: Handle) -> FeatureHandle:
    pool = find_pool(handle.lease)
    return handle_message(handle, pool.layout, pool.views(handle.lease, len(handle.origins)))
