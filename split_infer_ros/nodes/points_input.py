"""The subscription to the point clouds of one LIDAR."""

from __future__ import annotations

from typing import Any, ClassVar

from sensor_msgs.msg import PointCloud2

from split_infer_ros.buffers.host_arrays import Floats
from split_infer_ros.drop_reason import DropReason
from split_infer_ros.nodes.frame_input import FrameInput
from split_infer_ros.nodes.managed import ManagedNode
from split_infer_ros.point_clouds.reading import read_points
from split_infer_ros.server.frame import Origin, Payload


class PointsInput(FrameInput):
    """Subscribes to point clouds.

    Args:
        node, topic, arguments: as for ``FrameInput``.
    """

    TYPES: ClassVar = {PointCloud2: "sensor_msgs/msg/PointCloud2"}
    NOUN, SOURCE = "point clouds", "LIDAR"
    UNREADABLE = DropReason.BAD_FIELDS

    def __init__(self, node: ManagedNode[Any], topic: str, **arguments: Any) -> None:
        super().__init__(node, topic, message=PointCloud2, **arguments)

    def read(self, message: Any) -> Floats:
        return read_points(message)

    def origin(self, header: Any, payload: Payload, age_s: float) -> Origin:
        return Origin(header, self._topic, height=0, width=0, age_s=age_s)
