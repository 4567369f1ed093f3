"""What a model's labels mean: ``vision_info``, latched, which names the parameter that lists them."""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.qos import DurabilityPolicy, QoSProfile
from vision_msgs.msg import VisionInfo

from split_infer_ros.nodes.endpoints import advertise
from split_infer_ros.nodes.managed import ManagedNode

LABELS = "class_labels"


class Labels:
    """Tells once; whoever comes later hears it too.

    Args:
        node: that tells.
        model: whose labels they are.
        labels: the name of each, by index.
        topics: in front of the topic, such as ``front/``.
        parameters: in front of the parameter, such as ``tenants.front.``.
    """

    def __init__(
        self, node: ManagedNode, model: str, labels: Sequence[str], topics: str = "", parameters: str = ""
    ) -> None:
        self._node = node
        name = f"{parameters}{LABELS}"
        node.table.tell(name, list(labels), "The name of each label, by index.")
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._publisher = advertise(node, VisionInfo, f"{topics}vision_info", latched)
        where = f"{node.get_fully_qualified_name()}/{name}"
        info = VisionInfo(method=model, database_location=where)
        info.header.stamp = node.get_clock().now().to_msg()
        self._publisher.publish(info)

    def close(self) -> None:
        """Leave the topic."""
        self._node.destroy_publisher(self._publisher)
